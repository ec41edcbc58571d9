"""What a round is worth: the weighted power mean of the requests' speeds (1 + gainᵢ) / T.

    log M(p) = log(1 + p·Σ wᵢ·h(1 + gainᵢ) / Σ wᵢ) / p - log T,   h(x) = (x^p - 1) / p

Power 0 is the limit, proportional fairness: h = log, Σ wᵢ·log(1 + gainᵢ) / Σ wᵢ - log T. Power 1 is
the throughput objective, log (Σ wᵢ·(1 + gainᵢ) / Σ wᵢ) / T. What a node adds to h is its worth.
"""

from typing import Literal

import numpy as np
from numba import njit

Objective = Literal["fair", "throughput"]


@njit(cache=True)
def worth_of(power: float, before: float, more: float) -> float:
    """What a request that gains `before` anyway adds by `more`, for each of its weight."""
    if power == 1.0:
        return more
    if power == 0.0:
        return np.log1p(more / (1.0 + before))
    return ((1.0 + before + more) ** power - (1.0 + before) ** power) / power


@njit(cache=True)
def value_of(power: float, worth: float, weights: float, seconds: float) -> float:
    """log M, `worth` being that of all nodes together and `weights` those of all requests."""
    mean = worth / weights
    speed = mean if power == 0.0 else np.log(1.0 + power * mean) / power
    return speed - np.log(seconds)
