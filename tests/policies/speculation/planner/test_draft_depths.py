"""Who begins to draft is one choice for all lanes: each alone would be wrong, or miss something."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from policies.speculation.planner.draft_depths import Depths, best_depths
from policies.speculation.planner.round_inputs import LaneCosts, Pairs, RoundCosts, round_seconds

from policies.cost import FREE, LinearCost, PiecewiseLinear
from policies.estimates.acceptance import AcceptanceEstimates
from policies.protocols import DraftPlan, LaneBatch, RoundContext
from policies.request import LaneView, RequestView
from policies.speculation.planner.best_prefix import Requests, no_caps
from policies.speculation.planner.policy import Planner, PlannerParams
from tests.policies.speculation.play import plan_alone

GREEDY = PlannerParams(explore=0.0, max_width=1)
VERIFY = PiecewiseLinear(0.0, 2e-4, 10e-3)
STEP = PiecewiseLinear(0.0, 5e-5, 2e-4)


def view(name: str, left: int = 1000) -> RequestView:
    return RequestView(name, 0.0, 100, max_tokens=200 + left, generated=200, first_token_s=0.1)


def round_context(draft_s: float = 2e-4, handling_s: float = 0.0) -> RoundContext:
    """`draft_s`: of a draft step, whatever is in it."""
    step = LinearCost(0.0, 5e-5, draft_s)
    verify = LinearCost(0.0, 2e-4, 10e-3)
    acceptance = AcceptanceEstimates([LaneView(name, name, capacity=8) for name in "ab"])
    draft = {"a": step, "b": step}
    return RoundContext(verify, draft, 256, {}, 256, acceptance, handling_s=handling_s)


def alike(step: PiecewiseLinear, call_s: float = 0.0, lanes: int = 1) -> LaneCosts:
    return LaneCosts(np.array([step] * lanes, np.float64), np.full(lanes, call_s))


def depths_of(pairs: Pairs, lanes: LaneCosts, waiting: Requests, costs: RoundCosts) -> Depths:
    width = np.ones(len(lanes.call_s), np.int64)
    return best_depths(True, pairs, lanes, width, waiting, costs)


def drafts(plan: DraftPlan) -> bool:
    return any(limit.depth > 0 for limit in plan.limits)


def test_lanes_share_what_no_lane_alone_would_pay_for() -> None:
    """Two requests each on two lanes, and 9 ms of handling in a round of 11."""
    one, other = [view("r0"), view("r1")], [view("r2"), view("r3")]
    dear = round_context(handling_s=9e-3)
    waiting = LaneBatch(None, other)
    [alone, _] = Planner(GREEDY).plan([LaneBatch("a", one), waiting], dear, 1.0)
    assert not drafts(alone)
    together = Planner(GREEDY).plan([LaneBatch("a", one), LaneBatch("b", other)], dear, 1.0)
    assert all(map(drafts, together))


def test_requests_that_only_wait_count() -> None:
    """A request drafts where its round is its own, and not where 15 others wait for its drafts."""
    far = round_context(draft_s=1e-3)
    assert drafts(plan_alone(Planner(GREEDY), [view("r")], "a", far, 1.0))
    others = LaneBatch(None, [view(f"other{number}") for number in range(15)])
    [plan, _] = Planner(GREEDY).plan([LaneBatch("a", [view("r")]), others], far, 1.0)
    assert not drafts(plan)


def test_a_cap_that_another_lanes_drafts_would_lift_is_kept() -> None:
    """Drafts for r0 take longer than r1 may be held up, unless r1 gains as well: on lane b."""
    params = PlannerParams(explore=0.0, max_width=1, window=1)
    slow = round_context(draft_s=1e-3)
    [alone, _] = Planner(params).plan(
        [LaneBatch("a", [view("r0")]), LaneBatch(None, [view("r1")])], slow, 1.0
    )
    assert not drafts(alone)
    assert all(
        map(
            drafts,
            Planner(params).plan(
                [LaneBatch("a", [view("r0")]), LaneBatch("b", [view("r1")])], slow, 1.0
            ),
        )
    )


@pytest.mark.parametrize(("left", "begins"), [(1000, True), (3, False)])
def test_catching_up_is_charged_to_the_rounds_to_come(left: int, begins: bool) -> None:
    """300 tokens are read in 15 ms, once, in rounds of 10."""
    params = PlannerParams(explore=0.0, max_width=1, no_harm=0.01)
    plan = plan_alone(Planner(params), [view("r", left)], "a", round_context(), 1.0, unread=[300])
    assert drafts(plan) == begins


def test_a_need_out_of_reach_leaves_short_drafts_to_the_others() -> None:
    """Of four that draft one would need twenty tokens, which nothing brings it; a fifth waits, and
    not longer than for two steps."""
    pairs = pairs_of(first=[0.7] * 4)
    waiting = free(5)
    step, costs = PiecewiseLinear(0.0, 0.0, 5e-3), costs_of(requests=5, overhead_s=0.0)
    waiting.need[0] = 20.0
    waiting.no_harm.slope[4] = 0.05
    waiting.no_harm.offset[4] = round_seconds(costs, 0.0, 0.0) + 12e-3 - 0.05
    assert depths_of(pairs, alike(step), waiting, costs).depth.all()


@pytest.mark.parametrize("found", [0.1, 1.0])
def test_calling_a_drafter_costs_overhead_whether_it_finds_a_draft_or_not(found: float) -> None:
    """RoundOverheads is what rounds take in which drafters are called, whether they find
    anything."""
    pairs = pairs_of(first=[0.1] * 4, found=[found] * 4)
    free_of_it, dear = (
        depths_of(pairs, alike(FREE), free(4), costs_of(4, overhead_s))
        for overhead_s in (0.0, 6e-3)
    )
    assert (free_of_it.depth > 0).all()
    assert not dear.depth.any()


def test_nodes_of_a_lookup_are_charged_as_often_as_it_has_a_draft() -> None:
    """Eight tokens of which the first is right now and then."""
    costs = costs_of(requests=4, overhead_s=0.0)._replace(verify=PiecewiseLinear(0.0, 2e-3, 10e-3))
    seldom, always = (
        depths_of(
            pairs_of(first=[0.1] * 4, found=[found] * 4),
            alike(FREE),
            free(4),
            costs,
        )
        for found in (0.1, 1.0)
    )
    assert (seldom.depth > 0).all()
    assert not always.depth.any()


def test_a_call_is_charged_once_for_all_that_draft_in_it() -> None:
    """What two would not pay for, four do."""
    costs = costs_of(requests=4, overhead_s=0.0)
    two, four = (
        depths_of(pairs_of(first=[0.8] * count), alike(STEP, call_s=6e-3), free(4), costs)
        for count in (2, 4)
    )
    assert not two.depth.any()
    assert four.depth.all()
    assert four.drafting_s[0] > 6e-3


@pytest.mark.parametrize("heavy", range(4))
def test_others_draft_only_if_it_pays_for_the_request_of_the_highest_weight(heavy: int) -> None:
    """One can gain little; where that one is heavy, fewer of the others hold it up."""
    pairs, costs = pairs_of(first=[0.9, 0.6, 0.4, 0.01]), costs_of(requests=4, overhead_s=0.0)
    waiting = free(4)
    equal = depths_of(pairs, alike(STEP), waiting, costs)
    waiting.weight[heavy] = 20.0
    begun = depths_of(pairs, alike(STEP), waiting, costs)
    assert (equal.depth > 0).tolist() == [True, True, True, False]
    assert (begun.depth[heavy] > 0) == (heavy < 3)
    others = np.delete(begun.depth, heavy)
    assert (others <= np.delete(equal.depth, heavy)).all()
    assert others.sum() < np.delete(equal.depth, heavy).sum()


def test_gap_to_the_best_depths() -> None:
    """Against every combination of depths for four requests on two lanes."""
    rng = np.random.default_rng(0)
    lost = []
    for _ in range(40):
        pairs = pairs_of(first=rng.uniform(0.1, 0.95, 4), acceptance=rng.uniform(0.3, 0.95, 4))
        pairs = pairs._replace(lane=np.array([0, 0, 1, 1]))
        costs = costs_of(requests=4, overhead_s=float(rng.choice([0.0, 2e-3, 6e-3])))
        chosen = depths_of(pairs, alike(STEP, lanes=2), free(4), costs).depth
        every = product((0, 1, 2, 3, 4, 5, 6, 8), repeat=4)
        best = max(worth(depths, pairs, costs) for depths in every)
        lost.append(best - worth(chosen.tolist(), pairs, costs))
    speeds = 1.0 - np.exp(-np.array(lost) / 4)  # of the geometric mean of the requests
    print(f"\nlost: mean {speeds.mean():.1%}, worst {speeds.max():.1%}")
    assert speeds.mean() < 0.005
    assert speeds.max() < 0.02


def worth(depths: Sequence[int], pairs: Pairs, costs: RoundCosts) -> float:
    gains = [
        first * sum(acceptance**level for level in range(depth))
        for depth, first, acceptance in zip(depths, pairs.first, pairs.next, strict=True)
    ]
    drafting_s = 0.0
    for lane in (0, 1):
        here = [depth for depth, at in zip(depths, pairs.lane, strict=True) if at == lane]
        rows = [sum(depth > level for depth in here) for level in range(max(here))]
        drafting_s = max(drafting_s, sum(STEP.predict(0, count) for count in rows))
    seconds = drafting_s + VERIFY.predict(0, costs.base_tokens + sum(depths))
    seconds += costs.overhead_s if any(depths) else 0.0
    return float(np.log1p(gains).sum() - len(gains) * np.log(seconds))


def costs_of(requests: int, overhead_s: float) -> RoundCosts:
    return RoundCosts(
        verify=VERIFY,
        context=0.0,
        base_tokens=float(requests),
        wait_s=0.0,
        overhead_s=overhead_s,
        other_lanes_s=0.0,
        room=256,
    )


def free(requests: int) -> Requests:
    """Without SLOs and caps."""
    zeros = [np.zeros(requests) for _ in range(5)]
    context, need, token_s, expected, min_gain = zeros
    slo, no_harm = no_caps(requests), no_caps(requests)
    weight = np.ones(requests)
    return Requests(context, weight, need, token_s, slo, no_harm, expected, min_gain)


def pairs_of(
    first: Sequence[float] | np.ndarray,
    acceptance: Sequence[float] | np.ndarray = (0.7,) * 4,
    found: Sequence[float] = (1.0,) * 4,
) -> Pairs:
    count = len(first)
    return Pairs(
        request=np.arange(count),
        lane=np.zeros(count, np.int64),
        first=np.array(first),
        next=np.array(acceptance[:count]),
        added=np.ones(count),
        found=np.array(found[:count]),
        unread=np.ones(count),
        rounds_left=np.ones(count),
        deepest=np.full(count, 8),
    )
