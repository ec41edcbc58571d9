"""What is decided before anything is drafted: what the SLOs of a round's requests need, and the
width of a lane's beam."""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import ForwardCost, forward_seconds
from policies.estimates.calibration import rank_acceptance
from policies.speculation.forest import Floats
from policies.speculation.planner.best_prefix import Requests
from policies.speculation.planner.round_costs import (
    ADDED,
    FIRST,
    NEXT,
    RoundCosts,
    chain_gain,
    round_seconds,
)
from policies.speculation.slo import BatchProgress, context_lengths, needs_at, slo_caps, tpots_of


class RoundTimes(NamedTuple):
    now: float
    plain_s: float
    """Time of the round without drafts."""
    round_s: float
    """Running mean of the time of a round."""
    first_token_limit_s: float
    """Requests.first_token_limit_s."""


@njit(cache=True)
def round_requests(
    progress: BatchProgress, chances: Floats, models: int, max_depth: int, times: RoundTimes
) -> Requests:
    """`chances`: of `models` lanes of models, then of lookups."""
    reach, expected = np.zeros((2, len(progress.generated)))
    for lane in range(len(chances)):
        for request in range(len(reach)):
            gain = chain_gain(chances[lane], request, max_depth)
            reach[request] += gain
            expected[request] += gain if lane >= models else 0.0
    verdict_s = times.now + max(times.plain_s, times.round_s)
    need, slo = needs_at(progress, verdict_s) - 1.0, slo_caps(progress, times.now)
    min_gain = np.zeros(len(reach))
    for request in range(len(reach)):
        need[request] = max(need[request], 0.0)
        if need[request] <= reach[request]:
            min_gain[request] = need[request]
        else:
            # An SLO that cannot be kept in this round does not cap it.
            slo.offset[request] = np.inf
    return Requests(
        context_lengths(progress),
        need,
        tpots_of(progress),
        slo,
        expected,
        min_gain,
        times.first_token_limit_s,
    )


@njit(cache=True)
def best_width(
    chances: Floats,
    context: float,
    siblings: Floats,
    step: ForwardCost,
    call_s: float,
    costs: RoundCosts,
    others: int,
    max_depth: int,
) -> int:
    """The width of the fastest uniform beam of any depth, if all requests of the lane draft; 0 if
    plain decoding is faster.

    `chances`: the lane's (round_costs.py), a column for each of its requests. A level of width w is
    accepted with probability p + (1 - p)·siblings[w - 1]. `context`: committed tokens of these
    requests; `others`: requests of the round that do not draft here.
    """
    count = chances.shape[1]
    best, most = 0, (count + others) / round_seconds(costs, 0.0, 0.0)
    for width in range(1, min(len(siblings), costs.room // max(1, count)) + 1):
        mass, tokens = chances[ADDED].copy(), float(count + others)
        rows = float(count * width)
        step_s = forward_seconds(step, context, rows)
        for depth in range(1, max_depth + 1):
            if rows * depth > costs.room:
                break
            for request in range(count):
                chain = chances[FIRST if depth == 1 else NEXT, request]
                mass[request] *= min(chain + (1.0 - chain) * siblings[width - 1], 0.99)
                tokens += mass[request]
            speed = tokens / round_seconds(costs, rows * depth, call_s + step_s * depth)
            if speed > most:
                best, most = width, speed
    return best


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
