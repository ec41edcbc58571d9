"""The requests of a round before anything is drafted: what their SLOs need."""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.speculation.forest import Floats
from policies.speculation.planner.best_prefix import Requests
from policies.speculation.planner.chances import chain_gain
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
