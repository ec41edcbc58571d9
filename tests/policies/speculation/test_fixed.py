"""Off and fixed: what they draft, and the limit of a forward."""

from hypothesis import given
from hypothesis import strategies as st

from policies.protocols import Speculation
from policies.speculation.fixed import Fixed, FixedParams, Off
from policies.tree import DraftTree
from tests.policies.speculation.play import plan_alone
from tests.policies.speculation.rounds import (
    SEEDED,
    candidates,
    is_whole,
    round_context,
    selected,
    trees,
    view,
)


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
