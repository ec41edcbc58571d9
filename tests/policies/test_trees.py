"""Many trees at once: each becomes what it would have become alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.tree import ROOT, DraftTree
from policies.trees import Merged, cut_to_chains, merge_each, prune_each
from tests.policies.test_tree import by_path, token_path, trees

SEEDED = settings(deadline=None, derandomize=True)
"""No deadline: the first call may compile."""
FORESTS = st.lists(trees(), max_size=4)


@SEEDED
@given(FORESTS, st.data())
def test_prune_keeps_the_chosen_paths_and_nothing_else(
    forest: list[DraftTree], data: st.DataObject
) -> None:
    keep = [
        np.array(data.draw(st.lists(st.booleans(), min_size=len(tree), max_size=len(tree))), bool)
        for tree in forest
    ]
    for tree, mask, pruned in zip(forest, keep, prune_each(forest, keep), strict=True):
        chosen = {
            token_path(tree, int(node))[:n]
            for node in np.flatnonzero(mask)
            for n in range(1, len(tree) + 1)
        }
        assert by_path(pruned) == {path: c for path, c in by_path(tree).items() if path in chosen}
        # Still a tree that build accepts, with the depths that build derives.
        rebuilt = DraftTree.build(pruned.tokens, pruned.parents, pruned.confidence)
        assert rebuilt.depth.tolist() == pruned.depth.tolist()
        # The drafter's order of preference among what is kept stands.
        order = [path for path in by_path(tree) if path in chosen]
        assert list(by_path(pruned)) == order


@SEEDED
@given(st.lists(FORESTS, max_size=3))
def test_merge_is_the_union_of_paths_with_the_best_confidence(
    proposed: list[list[DraftTree]],
) -> None:
    for several, (merged, sources) in zip(proposed, merge_each(proposed), strict=True):
        expected: dict[tuple[int, ...], float] = {}
        for tree in several:
            for path, confidence in by_path(tree).items():
                expected[path] = max(confidence, expected.get(path, 0.0))
        assert len(merged) == len(expected)
        assert sources is not None
        rebuilt = DraftTree.build(merged.tokens, merged.parents, merged.confidence)
        assert rebuilt.depth.tolist() == merged.depth.tolist()
        for node in range(len(merged)):
            path = token_path(merged, node)
            beside = [c for other, c in expected.items() if other[:-1] == path[:-1]]
            believed = expected[path] / max(1.0, sum(beside))
            assert merged.confidence[node] == pytest.approx(believed, rel=1e-5)
            have = [bit for bit, tree in enumerate(several) if path in by_path(tree)]
            assert sources[node] == sum(1 << bit for bit in have)


@SEEDED
@given(trees())
def test_merging_a_tree_with_itself_or_with_nothing_changes_no_path(tree: DraftTree) -> None:
    [(merged, sources)] = merge_each([[DraftTree.empty(), tree, tree]])
    assert merged.tokens.tolist() == tree.tokens.tolist()
    assert merged.parents.tolist() == tree.parents.tolist()
    assert sources is not None
    assert set(sources.tolist()) <= {0b110}


def test_two_drafters_that_are_sure_of_different_tokens_share_the_certainty() -> None:
    one, other = DraftTree.chain([1, 2], [0.9, 0.8]), DraftTree.chain([3], [0.6])
    [(merged, _)] = merge_each([[one, other]])
    assert merged.parents.tolist() == [ROOT, 0, ROOT]
    assert merged.confidence == pytest.approx([0.6, 0.8, 0.4])


@SEEDED
@given(st.lists(FORESTS, max_size=3))
def test_the_chain_of_a_tree_is_the_path_that_promises_the_most_tokens(
    proposed: list[list[DraftTree]],
) -> None:
    merged = merge_each(proposed)
    for (tree, sources), (chain, own) in zip(merged, cut_to_chains(merged), strict=True):
        assert chain.is_chain
        assert chain.depth.tolist() == list(range(1, len(chain) + 1))
        leaves = set(range(len(tree))) - set(tree.parents.tolist())
        worth = {leaf: float(tree.path_confidence()[tree.path(leaf)].sum()) for leaf in leaves}
        nodes = tree.follow(chain.tokens.tolist())
        assert len(nodes) == len(chain)
        assert not leaves or nodes[-1] in leaves, "a chain that ends early wastes a forward"
        assert float(chain.path_confidence().sum()) == pytest.approx(max(worth.values(), default=0))
        assert chain.confidence.tolist() == tree.confidence[nodes].tolist()
        assert sources is not None
        assert own is not None
        assert own.tolist() == sources[nodes].tolist()


def test_a_chain_stays_the_object_that_it_is_and_needs_no_sources() -> None:
    chain, forked = DraftTree.chain([5, 6]), DraftTree.build([1, 2, 3], [ROOT, ROOT, 1], [0.5] * 3)
    assert cut_to_chains([Merged(chain)])[0].tree is chain
    [first, second] = cut_to_chains([Merged(chain), Merged(forked)])
    assert (first.tree.tokens.tolist(), first.sources) == ([5, 6], None)
    assert (second.tree.tokens.tolist(), second.sources) == ([2, 3], None)
