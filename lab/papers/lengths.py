"""Predicted output lengths of a stated quality: an input of the simulator."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import kendalltau

from cluster.plan.simulator.workload import Arrival, Floats


def predict_lengths(arrivals: Sequence[Arrival], tau: float, seed: int) -> list[Arrival]:
    """Adds predicted output lengths of this rank correlation (Kendall's τ-b): true lengths times
    log-normal errors, whose spread is found by bisection."""
    if not 0.0 < tau <= 1.0:
        raise ValueError(f"tau must be in (0, 1], got {tau}")
    true = np.array([arrival.output_tokens for arrival in arrivals], np.float64)
    error = np.random.default_rng([seed, 4]).standard_normal(len(true))
    narrow, wide = 0.0, 64.0
    for _ in range(40):
        width = (narrow + wide) / 2
        reached = kendalltau(true, true * np.exp(width * error)).statistic
        narrow, wide = (width, wide) if reached > tau else (narrow, width)
    return _with_predictions(arrivals, true * np.exp(narrow * error))


def predict_with_error(arrivals: Sequence[Arrival], error: float, seed: int) -> list[Arrival]:
    """Adds predicted output lengths that are wrong by this share on average: true lengths times
    log-normal errors."""
    if not 0.0 <= error < 1.0:
        raise ValueError(f"the error is a share from 0 to below 1, got {error}")
    true = np.array([arrival.output_tokens for arrival in arrivals], np.float64)
    width = error * np.sqrt(np.pi / 2)  # E|N(0, 1)| = √(2 / π)
    draws = np.random.default_rng([seed, 4]).standard_normal(len(true))
    return _with_predictions(arrivals, true * np.exp(width * draws))


def _with_predictions(arrivals: Sequence[Arrival], predicted: Floats) -> list[Arrival]:
    return [
        replace(arrival, predicted_tokens=tokens)
        for arrival, tokens in zip(arrivals, predicted.tolist(), strict=True)
    ]
