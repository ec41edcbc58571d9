"""How wide a beam to draft, before anything is drafted."""

from collections.abc import Sequence

import numpy as np
from numba import njit

from policies.cost import bent_seconds
from policies.speculation.forest import Floats
from policies.speculation.prefix import Objective
from policies.speculation.prospects import RoundCosts, round_seconds

_MOST_CERTAIN = 0.99
"""However wide, a level may miss."""


def best_width(
    acceptance: Floats,
    added: Floats,
    siblings: Sequence[float],
    read: float,
    everyone: int,
    costs: RoundCosts,
    objective: Objective,
    max_depth: int,
) -> int:
    """The width of the best uniform beam of any depth, all requests of a lane drafting alike.

    A level of width w survives with p + (1 - p)·siblings[w - 1]: `siblings` is the probability
    that one of those behind the first is right where the first is not. Of what survives, the
    share `added` counts. The lane's requests have committed `read` tokens, and `everyone` waits.
    """
    requests = len(acceptance)
    widest = min(len(siblings), costs.draft_budget // max(1, requests))
    if widest <= 1:
        return 1
    shares = np.array(siblings[:widest])
    fair = objective == "fair"
    return _best(acceptance, added, shares, read, everyone, costs, max_depth, fair)


@njit(cache=True)
def _best(
    acceptance: Floats,
    added: Floats,
    shares: Floats,
    read: float,
    everyone: int,
    costs: RoundCosts,
    max_depth: int,
    fair: bool,
) -> int:
    requests = len(acceptance)
    best, most = 1, -np.inf
    for width in range(1, len(shares) + 1):
        survival = acceptance + (1.0 - acceptance) * shares[width - 1]
        survival = np.minimum(survival, _MOST_CERTAIN)
        mass = added.copy()
        gain = np.zeros(requests)
        level = float(requests * width)
        step_s = bent_seconds(costs.draft, read, level)
        for depth in range(1, max_depth + 1):
            if level * depth > costs.room:
                break
            mass *= survival
            gain += mass
            drafting_s = costs.call_s + step_s * depth
            time = np.log(round_seconds(costs, level * depth, drafting_s))
            if fair:
                value = np.log1p(gain).sum() - everyone * time
            else:
                value = np.log(everyone + gain.sum()) - time
            if value > most:
                best, most = width, value
    return best
