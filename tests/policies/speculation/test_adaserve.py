"""AdaServe: Algorithm 2 against Algorithm 1, against brute force, and against its own text."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.cost import ForwardCost
from policies.protocols import LaneBatch, Mask, RoundContext, Speculation
from policies.request import RequestView
from policies.speculation.adaserve import AdaServe, AdaServeParams, TreeShape
from policies.speculation.slo import BatchProgress, needs_at
from policies.tree import DraftTree
from tests.policies.speculation.adaserve_optimal import optimal_trees
from tests.policies.speculation.play import plan_alone
from tests.policies.speculation.rounds import (
    SEEDED,
    Candidate,
    candidates,
    is_whole,
    round_context,
    selected,
    trees,
    view,
)
from tests.policies.tree_lists import path_confidence

ROUND_S = 0.05
FLAT = ForwardCost(alpha=0.0, gamma=0.0, delta=ROUND_S)
"""t_spec is the same whatever is verified, so that a test can choose A(r)."""


def with_needs(drafted: Sequence[DraftTree], needs: Sequence[float]) -> list[Candidate]:
    """Requests whose A(r) at time 0 is as given: only the first token is out, ROUND_S / t_TPOT."""
    return candidates(drafted, [ROUND_S / wanted if wanted > 0 else None for wanted in needs])


def run(
    drafted: Sequence[DraftTree], needs: Sequence[float], budget: int, params: AdaServeParams
) -> list[Mask]:
    context = round_context(verify=FLAT, verify_budget=budget)
    return selected(AdaServe(params), with_needs(drafted, needs), context, 0.0)


UNLIMITED = AdaServeParams(most_for_slo=10_000)


@SEEDED
@given(st.lists(trees(), min_size=1, max_size=4), st.data())
def test_algorithm_2_is_algorithm_1_under_its_conditions(
    drafted: list[DraftTree], data: st.DataObject
) -> None:
    """f is the draft's own, every A is feasible and at most d + 1, n_max = ∞, and all f differ."""
    needs = [
        1.0 + data.draw(st.floats(0, 1)) * min(float(path_confidence(t).sum()), t.depth.max())
        if len(t)
        else 0.0
        for t in drafted
    ]
    budget = data.draw(st.integers(len(drafted), len(drafted) + 20))
    optimal = optimal_trees(drafted, needs, budget)
    assume(optimal is not None)
    assert optimal is not None
    masks = run(drafted, needs, budget, UNLIMITED)
    assert [mask.tolist() for mask in masks] == [mask.tolist() for mask in optimal]


# -- the paper's text and our deviations ---------------------------------------------------------


def test_need_is_the_paper_s_formula() -> None:
    """A(r) = (l + t_spec) / t_TPOT - o, with 10 tokens in 0.9 s after the first token."""
    request = view("a", tpot_s=0.06, generated=11, first_token_s=2.0)
    others = [view("b"), view("c", tpot_s=0.06, first_token_s=None)]
    batch = [request, *others]
    needs = needs_at(BatchProgress.of(batch), 2.9)
    assert needs.tolist() == pytest.approx([0.9 / 0.06 - 10, -np.inf, -np.inf])


def test_deviation_t_spec_includes_waits_between_verdicts() -> None:
    """One draft token of 0.5 suffices for A = 1.4, but not with 0.01 s of queueing."""
    drafted = [DraftTree.build([1, 2], [-1, -1], [0.5, 0.3])]
    chosen = with_needs(drafted, [1.4])
    params = AdaServeParams(throughput_step=False)
    [mask] = selected(AdaServe(params), chosen, round_context(verify=FLAT), 0.0)
    assert mask.tolist() == [True, False]
    context = round_context(verify=FLAT, waiting_s=0.01)
    [mask] = selected(AdaServe(params), chosen, context, 0.0)
    assert mask.tolist() == [True, True]


def test_deviation_the_accepted_count_adds_path_probabilities() -> None:
    """Line 15 adds the conditional one: 1 + 0.5 + 0.9 would meet A = 2.2 with two tokens."""
    drafted = [DraftTree.chain([1, 2, 3, 4], [0.5, 0.9, 0.9, 0.9])]
    [mask] = run(drafted, [2.2], 100, AdaServeParams(throughput_step=False))
    assert mask.tolist() == [True, True, True, False]  # 0.5 + 0.45 + 0.405


def test_a_need_counts_for_at_most_the_depth_plus_one() -> None:
    """A = 100 counts as d + 1: two certain tokens meet it, the rest is for throughput."""
    drafted = [
        DraftTree.build([1, 2, 3, 4], [-1, 0, -1, -1], [1.0, 1.0, 1e-9, 1e-9]),
        DraftTree.chain([1, 2], [0.9, 0.9]),
    ]
    masks = run(drafted, [100.0, 0.0], 2 + 4, AdaServeParams())
    assert [mask.tolist() for mask in masks] == [[True, True, False, False], [True, True]]


def test_n_max_bounds_the_slo_step_only() -> None:
    drafted = [DraftTree.chain([1, 2, 3, 4], [0.3] * 4), DraftTree.chain([1], [0.2])]
    params = AdaServeParams(most_for_slo=2)
    masks = run(drafted, [5.0, 0.0], 2 + 3, params)
    assert [mask.tolist() for mask in masks] == [[True, True, False, False], [True]]
    masks = run(drafted, [5.0, 0.0], 2 + 5, params)
    assert [mask.all() for mask in masks] == [True, True]


@SEEDED
@given(st.lists(trees(), max_size=5), st.integers(0, 30), st.integers(0, 5), st.data())
def test_every_selection_has_all_ancestors_and_is_within_the_budget(
    drafted: list[DraftTree], budget: int, other: int, data: st.DataObject
) -> None:
    needs = [data.draw(st.floats(0, 6)) for _ in drafted]
    context = round_context(verify=FLAT, verify_budget=budget, prefill_tokens=other)
    masks = selected(AdaServe(), with_needs(drafted, needs), context, 0.0)
    kept = sum(int(mask.sum()) for mask in masks)
    space = max(0, budget - len(drafted))
    assert kept == min(space, sum(len(tree) for tree in drafted))
    assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))


# -- depth and width ---------------------------------------------------------------------------


def limits(requests: int, context: RoundContext, shape: TreeShape) -> set[tuple[int, int]]:
    batch: list[RequestView] = [view(f"r{number}") for number in range(requests)]
    policy: Speculation = AdaServe(AdaServeParams(shape))
    return {
        (one.depth, one.width) for one in plan_alone(policy, batch, "lane", context, 0.0).limits
    }


def test_depth_and_width_follow_the_load() -> None:
    """Eq. 8 and 9 with their two budgets."""
    shape = TreeShape(min_depth=1, max_depth=6, max_width=5, c1=2, c2=1)
    context = round_context(verify_budget=64, draft_budget=24)
    assert limits(1, context, shape) == {(6, 5)}  # clipped: 64 / 3 - 1, 24 + 1
    assert limits(10, context, shape) == {(64 // 12 - 1, 24 // 10 + 1)}
    assert limits(100, context, shape) == {(1, 1)}  # clipped from below


@pytest.mark.parametrize("together", [True, False])
def test_n_counts_the_requests_of_all_lanes(together: bool) -> None:
    """Eq. 8 and 9: sixteen active requests share B₁, on one lane or on two, which are planned
    together with Spin's barrier and one by one without it. B₂ is each drafter's own."""
    batch: list[RequestView] = [view(f"r{number}") for number in range(16)]
    context = round_context(verify_budget=64)._replace(
        draft_budgets={"left": 64, "right": 32}, active=0 if together else 16
    )
    lanes = [LaneBatch("left", batch[:8]), LaneBatch("right", batch[8:])]
    policy: Speculation = AdaServe()
    if together:
        plans = policy.plan(lanes, context, 0.0)
    else:
        plans = [plan for lane in lanes for plan in policy.plan([lane], context, 0.0)]
    assert [set(plan.limits) for plan in plans] == [{(3, 4)}, {(3, 2)}]
