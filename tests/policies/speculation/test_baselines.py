"""Off, fixed and threshold: what they draft, and the limit of a forward."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.protocols import Speculation
from policies.speculation.adaserve import TreeShape
from policies.speculation.baselines import (
    Equal,
    EqualParams,
    Fixed,
    FixedParams,
    Off,
    SpecInfer,
    SpecInferParams,
    Threshold,
    ThresholdParams,
    ThresholdRule,
)
from policies.tree import ROOT, DraftTree
from tests.policies.speculation.play import plan_alone
from tests.policies.speculation.rounds import (
    SEEDED,
    candidates,
    gain,
    is_whole,
    random_trees,
    round_context,
    selected,
    trees,
    view,
    whole_subsets,
)


def level(*path: float) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return np.array(path, np.float32)


def test_off_neither_drafts_nor_verifies_what_free_drafters_propose() -> None:
    policy: Speculation = Off()
    plan = plan_alone(policy, [view("a"), view("b")], "lane", round_context(), 0.0)
    assert [limit.depth for limit in plan.limits] == [0, 0]
    masks = selected(
        policy, candidates([DraftTree.chain([1, 2]), DraftTree.empty()]), round_context(), 0.0
    )
    assert [mask.tolist() for mask in masks] == [[False, False], []]


def test_fixed_drafts_its_length_but_not_beyond_max_tokens() -> None:
    policy: Speculation = Fixed(FixedParams(length=5))
    batch = [view("a"), view("b", generated=97, max_tokens=100)]
    plan = plan_alone(policy, batch, "lane", round_context(), 0.0)
    assert [(limit.depth, limit.width) for limit in plan.limits] == [(5, 1), (2, 1)]
    assert plan.rule is None


@SEEDED
@given(st.lists(trees(), min_size=1, max_size=4), st.integers(0, 20))
def test_nodes_beyond_the_limit_are_cut_from_the_deepest_level(
    drafted: list[DraftTree], budget: int
) -> None:
    masks = selected(Fixed(), candidates(drafted), round_context(most_tokens=budget), 0.0)
    kept = [int(d) for t, m in zip(drafted, masks, strict=True) for d in t.depth[m]]
    cut = [int(d) for t, m in zip(drafted, masks, strict=True) for d in t.depth[~m]]
    assert len(kept) == min(max(0, budget - len(drafted)), sum(map(len, drafted)))
    assert not kept or not cut or max(kept) <= min(cut)
    assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))


def test_threshold_stops_each_request_after_its_first_token_below_it() -> None:
    policy: Speculation = Threshold(ThresholdParams(confidence=0.5, max_length=6))
    plan = plan_alone(policy, [view("a"), view("b")], "lane", round_context(), 0.0)
    assert [limit.depth for limit in plan.limits] == [6, 6]
    assert plan.rule is not None
    rule = pickle.loads(pickle.dumps(plan.rule))  # as it is sent to the drafter
    assert rule(0, ["a", "b"], [level(), level()]) == [True, True]
    assert rule(1, ["a", "b"], [level(0.9), level(0.4)]) == [True, False]
    # 0.9 · 0.6: the confidence of the token counts, not of the path.
    assert rule(2, ["a"], [level(0.54)]) == [True]
    assert rule(3, ["a"], [level(0.49)]) == [True]
    assert rule(4, ["a"], [level(0.2)]) == [False]


def test_threshold_ignores_load() -> None:
    """Why SpecServe's Fig. 12 shows it drafting 8 tokens under any load."""
    rule = ThresholdRule(0.4)
    for batch in (1, 64):
        names = [str(number) for number in range(batch)]
        assert all(rule(0, names, [level()] * batch))
        assert all(rule(1, names, [level(0.9)] * batch))


def test_a_batch_that_is_stepped_together_drafts_on_for_its_most_confident_request() -> None:
    """Why SpecServe's Table 2 has 6.5 draft tokens in large batches and 3.8 in small ones."""
    policy = Threshold(ThresholdParams(confidence=0.5, together=True))
    plan = plan_alone(policy, [view("a"), view("b")], "lane", round_context(), 0.0)
    rule = plan.rule
    assert rule is not None
    assert rule(0, ["a", "b"], [level(), level()]) == [True, True]
    assert rule(1, ["a", "b"], [level(0.9), level(0.1)]) == [True, True]
    # 0.9 · 0.3 and 0.1 · 0.8: now the other one is confident.
    assert rule(2, ["a", "b"], [level(0.27), level(0.08)]) == [True, True]
    assert rule(3, ["a", "b"], [level(0.1), level(0.02)]) == [False, False]


def test_threshold_stops_when_the_drafter_proposes_nothing() -> None:
    rule = ThresholdRule(0.4)
    rule(0, ["a"], [level()])
    assert rule(1, ["a"], [level()]) == [False]


def beam(depth: int, width: int, rng: np.random.Generator) -> DraftTree:
    parents = [ROOT] * width
    for level in range(1, depth):
        below = range((level - 1) * width, level * width)
        parents += sorted(int(rng.choice(below)) for _ in range(width))
    return DraftTree.build(
        list(range(len(parents))), parents, rng.uniform(0.1, 0.5, len(parents)).tolist()
    )


@pytest.mark.parametrize("requests", [1, 64])
def test_a_tree_has_23_tokens_under_any_load(requests: int) -> None:
    """AdaServe 6.2: 'each draft token tree contains 23 tokens with no upper limit'."""
    policy: Speculation = SpecInfer()
    batch = [view(f"r{number}") for number in range(requests)]
    plan = plan_alone(policy, batch, "lane", round_context(most_tokens=100_000), 0.0)
    assert {(limit.depth, limit.width) for limit in plan.limits} == {(8, 3)}
    rng = np.random.default_rng(0)
    drafted = [beam(8, 3, rng) for _ in range(requests)]
    masks = selected(policy, candidates(drafted), round_context(most_tokens=100_000), 0.0)
    assert {int(mask.sum()) for mask in masks} == {23}
    assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))


def test_width_1_is_a_chain() -> None:
    """SpecInfer* of SpecServe's section 7.1."""
    plan = plan_alone(
        SpecInfer(SpecInferParams(width=1)), [view("a")], "lane", round_context(), 0.0
    )
    assert [(limit.depth, limit.width) for limit in plan.limits] == [(8, 1)]


def test_no_forward_takes_more_than_its_limit() -> None:
    """Deviation: trees ignore budgets, but not the limit of a forward."""
    drafted = random_trees(np.random.default_rng(0), 3, 8)
    masks = selected(SpecInfer(), candidates(drafted), round_context(most_tokens=3 + 10), 0.0)
    assert sum(int(mask.sum()) for mask in masks) == 10
    assert all(is_whole(tree, mask) for tree, mask in zip(drafted, masks, strict=True))


@SEEDED
@given(st.lists(trees(), min_size=1, max_size=4), st.integers(0, 24))
def test_equal_gives_each_request_the_same_number_of_its_best_nodes(
    drafted: list[DraftTree], budget: int
) -> None:
    tpots = [0.001 * (number + 1) for number in range(len(drafted))]  # ignored
    masks = selected(Equal(), candidates(drafted, tpots), round_context(verify_budget=budget), 0.0)
    each = max(0, budget - len(drafted)) // len(drafted)
    for tree, mask in zip(drafted, masks, strict=True):
        assert mask.sum() == min(each, len(tree))
        best = max(gain(tree, other) for other in whole_subsets(tree) if other.sum() <= each)
        assert gain(tree, mask) == pytest.approx(best, rel=1e-5)


def test_equal_drafts_as_adaserve_does() -> None:
    plan = plan_alone(
        Equal(EqualParams(TreeShape(max_depth=5))),
        [view(name) for name in "abcd"],
        "lane",
        round_context(verify_budget=16, draft_budget=8),
        0.0,
    )
    assert {(limit.depth, limit.width) for limit in plan.limits} == {(3, 2)}
