"""Operations on many trees at once, against the same on each tree alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.flat_trees import best_chains, flatten, gather_trees, prune_each, split
from policies.tree import DraftTree
from tests.policies.test_tree import by_path, token_path, trees
from tests.policies.tree_lists import merged_each, path_confidence

SEEDED = settings(deadline=None, derandomize=True)
"""Without a deadline, because the first call may compile."""
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
    kept = prune_each(flatten(forest), np.concatenate([*keep, np.zeros(0, bool)]))
    for tree, mask, pruned in zip(forest, keep, split(kept), strict=True):
        chosen = {
            token_path(tree, int(node))[:n]
            for node in np.flatnonzero(mask)
            for n in range(1, len(tree) + 1)
        }
        assert by_path(pruned) == {path: c for path, c in by_path(tree).items() if path in chosen}
        # Still a tree that build accepts, with the depths that build derives.
        rebuilt = DraftTree.build(pruned.tokens, pruned.parents, pruned.confidence)
        assert rebuilt.depth.tolist() == pruned.depth.tolist()
        # The drafter's order of preference is kept.
        order = [path for path in by_path(tree) if path in chosen]
        assert list(by_path(pruned)) == order


@SEEDED
@given(st.lists(FORESTS, max_size=3))
def test_merge_is_the_union_of_paths_with_the_best_confidence(
    proposed: list[list[DraftTree]],
) -> None:
    for several, (merged, sources) in zip(proposed, merged_each(proposed), strict=True):
        expected: dict[tuple[int, ...], float] = {}
        for tree in several:
            for path, confidence in by_path(tree).items():
                expected[path] = max(confidence, expected.get(path, 0.0))
        assert len(merged) == len(expected)
        rebuilt = DraftTree.build(merged.tokens, merged.parents, merged.confidence)
        assert rebuilt.depth.tolist() == merged.depth.tolist()
        for node in range(len(merged)):
            path = token_path(merged, node)
            beside = [c for other, c in expected.items() if other[:-1] == path[:-1]]
            expected_confidence = expected[path] / max(1.0, sum(beside))
            assert merged.confidence[node] == pytest.approx(expected_confidence, rel=1e-5)
            have = [bit for bit, tree in enumerate(several) if path in by_path(tree)]
            assert sources[node] == sum(1 << bit for bit in have)


@SEEDED
@given(st.lists(FORESTS, max_size=3))
def test_the_best_chain_has_the_most_expected_tokens(proposed: list[list[DraftTree]]) -> None:
    merged = [tree for tree, _ in merged_each(proposed)]
    flat = flatten(merged)
    for tree, chain in zip(merged, split(prune_each(flat, best_chains(flat))), strict=True):
        assert chain.is_chain
        assert chain.depth.tolist() == list(range(1, len(chain) + 1))
        leaves = set(range(len(tree))) - set(tree.parents.tolist())
        worth = {leaf: float(path_confidence(tree)[tree.path(leaf)].sum()) for leaf in leaves}
        nodes = tree.follow(chain.tokens.tolist())
        assert len(nodes) == len(chain)
        assert not leaves or nodes[-1] in leaves, "a chain that ends early wastes a forward"
        assert float(path_confidence(chain).sum()) == pytest.approx(max(worth.values(), default=0))
        assert chain.confidence.tolist() == tree.confidence[nodes].tolist()


@SEEDED
@given(st.lists(FORESTS, max_size=3), st.data())
def test_gather_trees_returns_the_referenced_trees_in_order(
    sets: list[list[DraftTree]], data: st.DataObject
) -> None:
    flats = [flatten(trees) for trees in sets]
    refs = [(number, place) for number, trees in enumerate(sets) for place in range(len(trees))]
    chosen = data.draw(st.permutations(refs + refs[:2]))
    gathered = split(gather_trees([(flats[number], place) for number, place in chosen]))
    for (number, place), tree in zip(chosen, gathered, strict=True):
        assert by_path(tree) == by_path(sets[number][place])
        assert tree.depth.tolist() == sets[number][place].depth.tolist()
