"""SpecInfer's static trees, and equal scheduling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.protocols import Speculation
from policies.speculation.adaserve import TreeShape
from policies.speculation.baselines import Equal, EqualParams, SpecInfer, SpecInferParams
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
