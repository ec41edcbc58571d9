"""Chooses the width of each lane's beam before anything is drafted."""

import numpy as np
from numba import njit

from policies.cost import forward_seconds
from policies.estimates.acceptance import PairEstimates
from policies.estimates.calibration import rank_acceptance
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.objective import value_of, worth_of
from policies.speculation.planner.round_inputs import (
    LaneCosts,
    RoundCosts,
    round_seconds,
    step_of,
)


@njit(cache=True)
def best_widths(
    fair: bool,
    starts: Ints,
    request: Ints,
    estimates: PairEstimates,
    context: Floats,
    siblings: Floats,
    lanes: LaneCosts,
    costs: RoundCosts,
    max_depth: int,
) -> Ints:
    """For each lane, the width of the best uniform beam of any depth, if all requests of the lane
    draft.

    A level of width w is accepted with probability p + (1 - p)·siblings[lane, w - 1]. Lane l has
    the pairs from starts[l] up to starts[l + 1].
    """
    widths = np.ones(len(siblings), np.int64)
    for lane in range(len(siblings)):
        begin, end = starts[lane], starts[lane + 1]
        most = -np.inf
        for width in range(1, min(siblings.shape[1], costs.room // max(1, end - begin)) + 1):
            mass, gain = estimates.added[begin:end].copy(), np.zeros(end - begin)
            read, rows = context[request[begin:end]].sum(), float((end - begin) * width)
            step_s = forward_seconds(step_of(lanes, lane), read, rows)
            for depth in range(1, max_depth + 1):
                if rows * depth > costs.room:
                    break
                worth = 0.0
                for pair in range(end - begin):
                    first = estimates.acceptance[begin + pair]
                    mass[pair] *= min(first + (1.0 - first) * siblings[lane, width - 1], 0.99)
                    gain[pair] += mass[pair]
                    worth += worth_of(fair, 0.0, gain[pair])
                seconds = round_seconds(costs, rows * depth, lanes.call_s[lane] + step_s * depth)
                value = value_of(fair, worth, float(len(context)), seconds)
                if value > most:
                    widths[lane], most = width, value
    return widths


@njit(cache=True)
def sibling_shares(wrong: float, ranks: Floats, widest: int) -> Floats:
    """P(one of the further siblings is accepted | the first one is not), for each width.

    `wrong`: how often the first one is not accepted. `ranks`: for each rank, how often a sibling
    was verified and how often it was accepted.
    """
    shares, share = np.zeros(widest), wrong / 3
    for rank in range(1, widest):
        # Prior: the second sibling is accepted in a quarter of the cases that the first one misses,
        # and each further one three quarters as often as the one before it.
        share = rank_acceptance(ranks, rank, 0.75 * share)
        shares[rank] = min(1.0, shares[rank - 1] + share / max(wrong, share, 1e-9))
    return shares
