"""Plans what a round drafts, in one compiled call, and makes the step rule of each lane."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import FREE
from policies.estimates.acceptance import PairEstimates, Tables, estimates_of, level_accepted
from policies.estimates.calibration import IDENTITY, NO_RANK_COUNTS, Calibration
from policies.protocols import LaneBatch, RoundContext
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.best_prefix import Requests
from policies.speculation.planner.confidence_scale import ScaleTables, scales_of
from policies.speculation.planner.draft_depths import Depths, best_depths
from policies.speculation.planner.draft_widths import best_widths, sibling_shares
from policies.speculation.planner.no_harm import Accounts, caps_of, weights_of
from policies.speculation.planner.round_inputs import LaneCosts, Pairs, RoundCosts, round_seconds
from policies.speculation.planner.step_rule import LaneOutlook, PlannerStepRule
from policies.speculation.slo import (
    BatchProgress,
    context_lengths,
    draft_tokens_left_at,
    needs_at,
    slo_caps,
    tpots_of,
    without_tpot,
)

_UNREAD_ROUNDS = 16.0
"""The most rounds over which the time for a drafter's unread tokens is spread."""


class LaneInputs(NamedTuple):
    """The lanes that may draft, and the pairs of a request and a lane, grouped by lane."""

    starts: Ints
    """Lane l has the pairs from starts[l] up to starts[l + 1]."""
    request: Ints
    """For each pair, the request's index in the round."""
    lane: Ints
    unread: Floats
    """For each pair, the committed tokens that the first draft step processes."""
    costs: LaneCosts
    numbers: Ints
    """The numbers of the lanes' drafters in the acceptance estimates."""
    ranks: Floats
    """For each lane and rank, how often siblings were verified and accepted."""

    def pairs(self, lane: int) -> slice:
        return slice(int(self.starts[lane]), int(self.starts[lane + 1]))


def lane_inputs(
    batches: Sequence[LaneBatch],
    places: Mapping[str, int],
    context: RoundContext,
    calibrations: Mapping[str, Calibration],
) -> LaneInputs:
    """The inputs as arrays; `places`: each request's index in the round."""
    names = [batch.lane or "" for batch in batches]
    unread = [count for batch in batches for count in batch.unread or [1] * len(batch.requests)]
    sizes = [len(batch.requests) for batch in batches]
    steps = [context.draft[name].piecewise if name in context.draft else FREE for name in names]
    ranks = [
        calibrations[name].rank_counts if name in calibrations else NO_RANK_COUNTS for name in names
    ]
    return LaneInputs(
        np.array([*accumulate(sizes, initial=0)], np.int64),
        np.array([places[one.name] for batch in batches for one in batch.requests], np.int64),
        np.repeat(np.arange(len(sizes)), sizes),
        np.maximum(np.array(unread, np.float64), 1.0),
        LaneCosts(
            np.array(steps, np.float64),
            np.array([context.call_s.get(name, 0.0) for name in names]),
        ),
        context.acceptance.numbers(names),
        np.array(ranks),
    )


class PlanSettings(NamedTuple):
    fair: bool
    max_depth: int
    max_width: int
    now: float
    round_s: float
    """Running mean of the time of a round."""


class Plan(NamedTuple):
    depths: Depths
    deepest: Ints
    """The most levels that each pair may draft."""
    width: Ints
    """Width of each lane's beam."""
    plain_s: float
    """Time of the round if no request drafts."""
    requests: Requests
    outlook: Floats
    """Inputs of the step rules, indexed by [quantity, lane, request]; the quantities are unread,
    next and added (`LaneOutlook`), and the gain expected from other lanes."""


@njit(cache=True)
def plan_round(
    rows: Ints,
    progress: BatchProgress,
    lanes: LaneInputs,
    acceptance: Tables,
    acceptance_rows: Ints,
    scale_tables: ScaleTables,
    accounts: Accounts,
    costs: RoundCosts,
    settings: PlanSettings,
) -> Plan:
    """`acceptance_rows`: the requests' rows in the acceptance estimates."""
    fair, context = settings.fair, context_lengths(progress)
    plain_s = round_seconds(costs, 0.0, 0.0)
    estimates = estimates_of(acceptance, acceptance_rows, lanes.request, lanes.lane, lanes.numbers)
    siblings = np.empty((len(lanes.numbers), settings.max_width))
    for number in range(len(lanes.numbers)):
        wrong = 1.0 - level_accepted(acceptance, lanes.numbers[number])
        siblings[number] = sibling_shares(wrong, lanes.ranks[number], settings.max_width)
    width = best_widths(
        fair,
        lanes.starts,
        lanes.request,
        estimates,
        context,
        siblings,
        lanes.costs,
        costs,
        settings.max_depth,
    )
    scale = scales_of(rows, scale_tables)
    pairs = _pairs(lanes, estimates, progress, scale, settings.max_depth)
    requests = _requests(rows, progress, context, pairs, accounts, plain_s, settings)
    depths = best_depths(fair, pairs, lanes.costs, width, requests, costs)
    outlook = _outlook(pairs, depths.gain, len(width), len(rows))
    return Plan(depths, pairs.deepest, width, plain_s, requests, outlook)


@njit(cache=True)
def _pairs(
    lanes: LaneInputs,
    estimates: PairEstimates,
    progress: BatchProgress,
    scale: Floats,
    max_depth: int,
) -> Pairs:
    added, rounds_left = np.empty((2, len(lanes.lane)))
    deepest = np.empty(len(lanes.lane), np.int64)
    for pair, request in enumerate(lanes.request):
        left = draft_tokens_left_at(progress, request)
        added[pair] = scale[request] * estimates.added[pair]
        # Rounds with drafts commit several tokens each: 4 is a rough mean.
        rounds_left[pair] = min(max(left / 4.0, 1.0), _UNREAD_ROUNDS)
        deepest[pair] = int(min(left, max_depth))
    return Pairs(
        lanes.request,
        lanes.lane,
        estimates.first,
        estimates.acceptance,
        added,
        estimates.found,
        lanes.unread,
        rounds_left,
        deepest,
    )


@njit(cache=True)
def _requests(
    rows: Ints,
    progress: BatchProgress,
    context: Floats,
    pairs: Pairs,
    accounts: Accounts,
    plain_s: float,
    settings: PlanSettings,
) -> Requests:
    bound = without_tpot(progress)
    if not settings.fair:
        bound[:] = False
    reach = np.zeros(len(rows))
    for pair, request in enumerate(pairs.request):
        level = pairs.first[pair]
        for _ in range(settings.max_depth):
            reach[request] += level
            level *= pairs.next[pair]
    verdict_s = settings.now + max(plain_s, settings.round_s)
    need, slo = needs_at(progress, verdict_s) - 1.0, slo_caps(progress, settings.now)
    min_gain = np.zeros(len(rows))
    for request in range(len(rows)):
        need[request] = max(need[request], 0.0)
        if need[request] <= reach[request]:
            min_gain[request] = need[request]
        else:
            # An SLO that cannot be kept in this round does not cap it.
            slo.offset[request] = np.inf
    no_harm = caps_of(rows, bound, plain_s, accounts)
    weight = weights_of(rows, bound, accounts)
    expected = np.zeros(len(rows))
    return Requests(context, weight, need, tpots_of(progress), slo, no_harm, expected, min_gain)


@njit(cache=True)
def _outlook(pairs: Pairs, gain: Floats, lanes: int, requests: int) -> Floats:
    outlook = np.zeros((4, lanes, requests))
    for pair, request in enumerate(pairs.request):
        own = pairs.lane[pair]
        outlook[0, own, request] = pairs.unread[pair]
        outlook[1, own, request] = pairs.next[pair]
        outlook[2, own, request] = pairs.added[pair]
        for lane in range(lanes):
            outlook[3, lane, request] += gain[pair] if lane != own else 0.0
    return outlook


def rules_of(
    plan: Plan,
    fair: bool,
    lanes: Sequence[str],
    names: tuple[str, ...],
    context: RoundContext,
    costs: RoundCosts,
    calibrations: Mapping[str, Calibration],
) -> list[PlannerStepRule]:
    """One step rule for each lane, which assumes that the other lanes draft as planned. `names`: of
    all requests in the round."""
    nodes, drafting_s = plan.depths.nodes.tolist(), plan.depths.drafting_s.tolist()
    rules = []
    for lane, name in enumerate(lanes):
        others = sum(nodes) - nodes[lane]
        calibration = calibrations.get(name)
        rules.append(
            PlannerStepRule(
                fair=fair,
                costs=costs._replace(
                    base_tokens=costs.base_tokens + others,
                    wait_s=costs.wait_s + (costs.overhead_s if others else 0.0),
                    overhead_s=0.0 if others else costs.overhead_s,
                    other_lanes_s=max(drafting_s[:lane] + drafting_s[lane + 1 :], default=0.0),
                    room=max(0, costs.room - int(others)),
                ),
                step=context.draft[name].piecewise if name in context.draft else FREE,
                call_s=context.call_s.get(name, 0.0),
                names=names,
                requests=plan.requests._replace(expected=plan.outlook[3, lane]),
                outlook=LaneOutlook(*plan.outlook[:3, lane]),
                survival=calibration.survival if calibration else IDENTITY,
                width=int(plan.width[lane]),
            )
        )
    return rules
