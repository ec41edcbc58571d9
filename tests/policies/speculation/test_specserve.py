"""SpecServe: the paper's properties, and each deviation from its pseudocode."""

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost import CostModel, ForwardCost
from policies.estimates.calibration import Calibration
from policies.flat_trees import flatten
from policies.protocols import LaneBatch, Mask, RoundContext, Speculation
from policies.speculation.specserve import SpecServe, SpecServeParams, SpecServeRule
from policies.tree import DraftTree
from tests.policies.speculation.play import plan_alone
from tests.policies.speculation.rounds import (
    DRAFT,
    SEEDED,
    VERIFY,
    Candidate,
    all_selections,
    candidates,
    gain,
    is_whole,
    round_context,
    selected,
    trees,
    view,
)

STEEP = ForwardCost(alpha=0.0, gamma=8e-3, delta=8e-3)
"""A verifier for which every token costs as much as the forward itself."""


def draft_chains(
    rule: SpecServeRule, names: Sequence[str], confidence: float, most: int = 50
) -> int:
    """The drafter's loop over chains of one confidence; returns the number of steps."""
    path = 1.0
    for depth in range(most):
        frontier = [np.array([path] if depth else [], np.float32)] * len(names)
        if not all(rule(depth, names, frontier)):
            return depth
        path *= confidence
    return most


def plan_length(
    requests: int,
    confidence: float,
    verify: CostModel = VERIFY,
    draft: CostModel = DRAFT,
    tpot_s: float | None = None,
    waiting_s: float = 0.0,
    call_s: float = 0.0,
) -> int:
    policy = SpecServe(SpecServeParams(max_length=50))
    selected(policy, by_lane("lane", [confidence]), round_context(), 0.0)
    batch = [view(f"r{number}", tpot_s=tpot_s) for number in range(requests)]
    context = round_context(verify=verify, draft=draft, waiting_s=waiting_s)
    context = context._replace(call_s={"lane": call_s})
    plan = plan_alone(policy, batch, "lane", context, 0.0)
    if plan.rule is None:
        return 0
    rule = pickle.loads(pickle.dumps(plan.rule))
    return draft_chains(rule, [request.name for request in batch], confidence)


def throughput(
    requests: int, length: int, confidence: float, verify: CostModel, draft: CostModel
) -> float:
    """Eq. 1, 4, 6, 7 and 8 for chains of one confidence and requests of 101 tokens."""
    accepted = requests * sum(confidence**j for j in range(length + 1))
    drafting_s = sum(draft.predict(requests * (101 + j), requests) for j in range(length))
    return accepted / (drafting_s + verify.predict(101 * requests, requests * (1 + length)))


@pytest.mark.parametrize("confidence", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("requests", [1, 8, 64])
@pytest.mark.parametrize("verify", [VERIFY, STEEP, ForwardCost(1e-6, 1e-5, 2e-2)])
def test_drafts_to_the_unique_peak_of_the_throughput(
    requests: int, confidence: float, verify: CostModel
) -> None:
    """Section 4.3: if the historical mean is right, stopping at the first loss finds the peak."""
    best = max(range(51), key=lambda n: throughput(requests, n, confidence, verify, DRAFT))
    assert plan_length(requests, confidence, verify) == best


def test_deviation_the_first_step_includes_the_time_of_the_call() -> None:
    free, costly = (plan_length(4, 0.8, call_s=call_s) for call_s in (0.0, 0.5))
    assert free > 1
    assert costly == 0


def test_deviation_predicts_this_step_s_acceptance_times_the_mean() -> None:
    """The printed algorithm appends the bare mean: a conditional, not a path probability.

    The first token was nearly hopeless; whatever follows it is too, however high the mean.
    """
    policy = SpecServe()
    selected(policy, by_lane("lane", [0.9]), round_context(), 0.0)
    rule = plan_alone(policy, [view("a")], "lane", round_context(), 0.0).rule
    assert rule is not None
    assert rule(0, ["a"], [np.array([], np.float32)]) == [True]
    assert rule(1, ["a"], [np.array([0.01], np.float32)]) == [False]
    rule(0, ["a"], [np.array([], np.float32)])
    assert rule(1, ["a"], [np.array([0.9], np.float32)]) == [True]


def test_deviation_the_bonus_is_one_of_the_accepted_tokens() -> None:
    """Alg. 1 sums the drafts' acceptance only. Counting the bonus halves what a first draft adds,
    so a step that costs 60% more time for 50% more tokens is not taken."""
    verify, draft = ForwardCost(0.0, 0.0, 10e-3), ForwardCost(0.0, 0.0, 6e-3)
    assert plan_length(1, 0.5, verify, draft) == 0
    assert plan_length(1, 0.7, verify, draft) > 0


# -- TPOT --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tpot_s", [9e-3, 12e-3, 20e-3])
def test_a_round_with_drafts_never_exceeds_the_tpot(tpot_s: float) -> None:
    length = plan_length(1, 0.95, tpot_s=tpot_s)
    took = length * DRAFT.predict(0, 1) + VERIFY.predict(101, 1 + length)
    assert took <= tpot_s
    assert plan_length(1, 0.95) > length


def test_the_tightest_tpot_of_the_batch_counts() -> None:
    batch = [view("a", tpot_s=1.0), view("b", tpot_s=5e-3), view("c")]
    plan = plan_alone(SpecServe(), batch, "lane", round_context(), 0.0)
    assert [limit.depth for limit in plan.limits] == [0, 0, 0]


def test_where_no_draft_pays_no_drafter_is_called() -> None:
    """A call that stops before its first step still reads what was committed, and is waited for."""
    policy = SpecServe()
    selected(policy, by_lane("lane", [0.3]), round_context(), 0.0)
    batch = [view(f"r{number}") for number in range(64)]
    plan = plan_alone(policy, batch, "lane", round_context(verify=STEEP), 0.0)
    assert {limit.depth for limit in plan.limits} == {0}


def test_the_batch_that_no_lane_drafts_for_may_be_empty() -> None:
    """The coordinator always appends it, and a fitted cost may have no constant part."""
    context = round_context(verify=ForwardCost(0.0, 1e-4, 0.0))
    [plan] = SpecServe().plan([LaneBatch(None, [])], context, 0.0)
    assert plan.limits == []


def test_a_slow_call_is_not_the_last_one() -> None:
    """Where only the call's own time speaks against it, it is made now and then: that may have
    changed. It drafts, because a call without a draft would count as one that finds nothing."""
    policy, context = SpecServe(), round_context()._replace(call_s={"lane": 0.5})
    plans = [plan_alone(policy, [view("a")], "lane", context, 0.0) for _ in range(64)]
    rules = [plan.rule for plan in plans if plan.rule is not None]
    assert len(rules) == 2
    assert all(rule(0, ["a"], [np.array([], np.float32)]) == [True] for rule in rules)


def test_hard_text_does_not_end_drafting_for_good() -> None:
    policy, context = SpecServe(), round_context()
    selected(policy, by_lane("lane", [0.01] * 8), context, 0.0)
    plans = [plan_alone(policy, [view("a")], "lane", context, 0.0) for _ in range(64)]
    assert [plan.rule is not None for plan in plans].count(True) == 2


def test_deviation_waits_between_two_verdicts_count_against_the_tpot() -> None:
    """Not only drafting and verification: queueing after other micro-batches, transport."""
    assert plan_length(1, 0.95, tpot_s=15e-3) > plan_length(1, 0.95, tpot_s=15e-3, waiting_s=5e-3)


# -- elimination -------------------------------------------------------------------------------


def estimate(
    chosen: Sequence[Candidate], masks: Sequence[Mask], context: RoundContext, tpot_s: float
) -> float:
    """Algorithm 3 by definition."""
    read = sum(one.request.context for one in chosen)
    tokens = len(chosen) + sum(int(mask.sum()) for mask in masks)
    seconds = max(one.drafting_s for one in chosen) + context.verify.predict(read, tokens)
    if seconds + context.waiting_s > tpot_s:
        return -1.0
    gained = sum(gain(one.tree, mask) for one, mask in zip(chosen, masks, strict=True))
    return (len(chosen) + gained) / seconds


CHAINS = st.lists(
    st.lists(st.floats(0.05, 0.99), max_size=4).map(
        lambda confidence: DraftTree.chain(list(range(len(confidence))), confidence)
    ),
    min_size=1,
    max_size=3,
)


@SEEDED
@given(CHAINS, st.sampled_from([1e-4, 1e-3, 4e-3, 1e-2]))
def test_elimination_finds_the_best_set_of_all(drafted: list[DraftTree], gamma: float) -> None:
    """Section 4.3's unique peak: with a linear cost no other set of drafts does better."""
    chosen = candidates(drafted, drafting_s=2e-3)
    context = round_context(verify=ForwardCost(0.0, gamma, 8e-3))
    masks = selected(SpecServe(), chosen, context, 0.0)
    best = max(
        estimate(chosen, selection, context, np.inf) for selection in all_selections(drafted)
    )
    assert estimate(chosen, masks, context, np.inf) == pytest.approx(best, rel=1e-5)


@SEEDED
@given(st.lists(trees(nodes=5), min_size=1, max_size=3), st.floats(6e-3, 16e-3), st.integers(0, 12))
def test_deviation_elimination_goes_on_while_the_tpot_is_violated(
    drafted: list[DraftTree], tpot_s: float, budget: int
) -> None:
    """The printed loop stops at the first removal without a gain, such as from -1 to -1."""
    chosen = candidates(drafted, [tpot_s] * len(drafted), drafting_s=1e-3)
    context = round_context(most_tokens=budget, waiting_s=1e-3)
    masks = selected(SpecServe(), chosen, context, 0.0)
    assert sum(int(mask.sum()) for mask in masks) <= max(0, budget - len(drafted))
    assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))
    plain = [np.zeros(len(tree), np.bool_) for tree in drafted]
    if estimate(chosen, plain, context, tpot_s) < 0:
        # Plain decoding violates the TPOT as well: decode plainly.
        assert not any(mask.any() for mask in masks)
    else:
        assert estimate(chosen, masks, context, tpot_s) > 0


def test_deviation_prompts_in_the_verification_do_not_count_against_the_tpot() -> None:
    """Otherwise each round that reads a long prompt would lose what has been drafted."""
    drafted = [DraftTree.chain([1, 2], [0.9, 0.9])]
    context = round_context(verify=ForwardCost(0.0, 1e-4, 8e-3), prefill_tokens=1000)
    [mask] = selected(SpecServe(), candidates(drafted, [20e-3]), context, 0.0)
    assert mask.all()


def test_specserve_minus_verifies_all_that_was_drafted() -> None:
    """Table 2's ablation: the adaptive drafter without the confidence prior verifier."""
    policy: Speculation = SpecServe(SpecServeParams(eliminate=False))
    drafted = [DraftTree.chain([1, 2], [0.01, 0.01])]
    assert selected(policy, candidates(drafted), round_context(verify=STEEP), 0.0)[0].all()
    assert not selected(SpecServe(), candidates(drafted), round_context(verify=STEEP), 0.0)[0].any()


def by_lane(lane: str, confidence: Sequence[float]) -> list[Candidate]:
    tree = DraftTree.chain(list(range(len(confidence))), list(confidence))
    return [Candidate(view(f"on {lane}"), tree, lanes=[lane])]


def test_each_lane_has_the_history_of_its_own_drafts() -> None:
    policy = SpecServe()
    selected(policy, by_lane("lane", [0.9]) + by_lane("lookup", [0.2]), round_context(), 0.0)
    assert policy.mean_confidence("lane") == pytest.approx(0.9)
    assert policy.mean_confidence("lookup") == pytest.approx(0.2)
    both = by_lane("lane", [0.5, 0.3])[0]._replace(lanes=["lane", "lookup"])
    merged = both._replace(sources=np.array([0b11, 0b10]))  # the second node is of `lookup` alone
    selected(policy, [merged], round_context(), 0.0)
    assert policy.mean_confidence("lane") == pytest.approx((0.9 + 0.5) / 2)
    assert policy.mean_confidence("lookup") == pytest.approx((0.2 + 0.5 + 0.3) / 3)


def test_algorithm_1_sees_the_confidences_that_algorithm_2_will_see() -> None:
    """A lane that is sure of tokens that are never accepted stops after its first step, while one
    whose confidences hold drafts on."""
    calibrations = {"right": Calibration(), "wrong": Calibration()}
    drafted = [DraftTree.chain([1, 2], [0.95, 0.95])] * 400
    for lane, committed in (("right", [1, 2, 3]), ("wrong", [7])):
        calibrations[lane].observe(flatten(drafted), [committed] * len(drafted))
    policy = SpecServe(calibrations=calibrations)
    batches = [LaneBatch(lane, [view(lane)]) for lane in calibrations]
    context = round_context()._replace(draft=dict.fromkeys(calibrations, DRAFT))
    right, wrong = (plan.rule for plan in policy.plan(batches, context, 0.0))
    assert right is not None
    assert wrong is not None
    for rule, name in ((right, "right"), (wrong, "wrong")):
        rule = pickle.loads(pickle.dumps(rule))
        assert rule(0, [name], [np.array([], np.float32)]) == [True]
        assert rule(1, [name], [np.array([0.95], np.float32)]) == [name == "right"]
