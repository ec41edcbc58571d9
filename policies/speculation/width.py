"""How wide a beam to draft, before anything is drafted."""

from collections.abc import Sequence

import numpy as np

from policies.speculation.forest import Floats
from policies.speculation.growth import RoundCosts
from policies.speculation.prefix import Objective

_MOST_CERTAIN = 0.99
"""However wide, a level may miss."""


def best_width(
    acceptance: Floats,
    siblings: Sequence[float],
    costs: RoundCosts,
    objective: Objective,
    max_depth: int,
) -> int:
    """The width of the best uniform beam of any depth, all requests drafting alike.

    A level of width w survives with p + (1 - p)·siblings[w - 1]: `siblings` is the probability
    that one of those behind the first is right where the first is not.
    """
    requests = len(acceptance)
    widest = min(len(siblings), costs.draft_budget // max(1, requests))
    if widest <= 1:
        return 1
    wide = np.array(siblings[:widest])[:, None]
    survival = np.minimum(acceptance + (1.0 - acceptance) * wide, _MOST_CERTAIN)
    # [width, depth, request]: p, p², ... and their sums.
    mass = np.cumprod(np.repeat(survival[:, None, :], max_depth, axis=1), axis=1)
    gain = np.cumsum(mass, axis=1)
    seconds = np.array([_seconds(requests, width + 1, max_depth, costs) for width in range(widest)])
    if objective == "fair":
        value = np.log1p(gain).sum(axis=2) - requests * np.log(seconds)
    else:
        value = np.log(requests + gain.sum(axis=2)) - np.log(seconds)
    return 1 + int(np.argmax(value.max(axis=1)))


def _seconds(requests: int, width: int, max_depth: int, costs: RoundCosts) -> list[float]:
    """T of a beam of each depth; inf where the verifier has no room for it."""
    level = requests * width
    step_s = costs.draft.predict(costs.read, level) if costs.draft is not None else 0.0
    return [
        costs.seconds(level * depth, step_s * depth) if level * depth <= costs.room else np.inf
        for depth in range(1, max_depth + 1)
    ]
