"""The planner's objective: the mean speed (1 + gainᵢ) / T of a round's requests.

`fair`: their weighted geometric mean (proportional fairness), Σ wᵢ·log(1 + gainᵢ) / Σ wᵢ - log T.
`throughput`: their arithmetic mean, log(Σ (1 + gainᵢ) / n) - log T.
"""

from typing import Literal

import numpy as np
from numba import njit

Objective = Literal["fair", "throughput"]


@njit(cache=True)
def worth_of(fair: bool, before: float, more: float) -> float:
    """What `more` expected tokens add to the objective, for a request of weight 1 that already
    expects to gain `before`."""
    return np.log1p(more / (1.0 + before)) if fair else more


@njit(cache=True)
def value_of(fair: bool, worth: float, weights: float, seconds: float) -> float:
    """The objective of a round of `seconds`, given the sums of its requests' worth and weights."""
    mean = worth / weights
    return (mean if fair else np.log1p(mean)) - np.log(seconds)
