"""Synthetic requests: arrival times, lengths and predicted lengths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from policies.request import Slo

Floats = NDArray[np.float64]

_NO_SLO = Slo()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload."""

    name: str
    at_s: float
    prompt_tokens: int
    output_tokens: int
    """Length of the target's output; policies do not see it."""
    max_tokens: int
    """The request's limit."""
    domain: str = ""
    slo: Slo = _NO_SLO
    priority: int = 0
    tenant: str = ""
    predicted_tokens: float | None = None
    """Output length that is predicted on arrival."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal distributions, which lengths of chat traces roughly follow."""

    prompt_mean: float = 256.0
    prompt_spread: float = 0.6
    """Standard deviation of the logarithm; 0: all equal."""
    output_mean: float = 200.0
    output_spread: float = 0.6
    longest: int = 2048
    """The longest prompt and output; also every request's max_tokens."""


def poisson(rate: float, count: int, seed: int) -> Floats:
    """Arrival times; `rate` per second."""
    return np.cumsum(np.random.default_rng([seed, 1]).exponential(1.0 / rate, count))


def bursty(rate: float, count: int, seed: int, variation: float = 3.0) -> Floats:
    """Gamma-distributed gaps with this coefficient of variation (Poisson has 1)."""
    shape = variation**-2
    gaps = np.random.default_rng([seed, 1]).gamma(shape, 1.0 / (rate * shape), count)
    return np.cumsum(gaps)


def draw(
    times: Sequence[float] | Floats,
    seed: int,
    lengths: Lengths = Lengths(),
    domains: Sequence[str] = ("",),
) -> list[Arrival]:
    """Requests at these times, of equally frequent domains."""
    rng = np.random.default_rng([seed, 2])
    count = len(times)
    prompts = _lognormal(rng, lengths.prompt_mean, lengths.prompt_spread, lengths.longest, count)
    outputs = _lognormal(rng, lengths.output_mean, lengths.output_spread, lengths.longest, count)
    chosen = rng.integers(0, len(domains), count)
    return [
        Arrival(f"r{i}", float(at_s), prompts[i], outputs[i], lengths.longest, domains[chosen[i]])
        for i, at_s in enumerate(times)
    ]


def _lognormal(
    rng: np.random.Generator, mean: float, spread: float, longest: int, count: int
) -> list[int]:
    drawn = rng.lognormal(np.log(mean) - spread**2 / 2, spread, count)
    return np.clip(np.rint(drawn), 1, longest).astype(int).tolist()


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
