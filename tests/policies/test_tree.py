"""Properties of the draft tree, each against a definition by token paths, not by arrays."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.tree import ROOT, DraftTree
from tests.policies.tree_lists import path_confidence

TOKENS = st.integers(0, 3)
"""Few, so that siblings, shared paths and matches are frequent."""


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Any valid tree: the parent of a node is an earlier node or the root; equal siblings are left
    out."""
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, 10))):
        parent, token = draw(st.integers(ROOT, len(tokens) - 1)), draw(TOKENS)
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    confidence = draw(
        st.lists(st.floats(0, 1, width=32), min_size=len(tokens), max_size=len(tokens))
    )
    return DraftTree.build(tokens, parents, confidence)


def token_path(tree: DraftTree, node: int) -> tuple[int, ...]:
    parent = int(tree.parents[node])
    above = () if parent == ROOT else token_path(tree, parent)
    return (*above, int(tree.tokens[node]))


def by_path(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """The tree as a mapping from token paths to confidences."""
    return {token_path(tree, node): float(tree.confidence[node]) for node in range(len(tree))}


def ancestors(tree: DraftTree, node: int) -> set[int]:
    parent = int(tree.parents[node])
    return set() if parent == ROOT else {parent} | ancestors(tree, parent)


@given(trees())
def test_depth_is_the_length_of_the_path(tree: DraftTree) -> None:
    assert tree.depth.tolist() == [len(token_path(tree, node)) for node in range(len(tree))]
    assert [len(tree.path(node)) for node in range(len(tree))] == tree.depth.tolist()


@given(trees())
def test_a_node_attends_to_itself_and_its_ancestors(tree: DraftTree) -> None:
    mask = tree.ancestor_mask()
    assert mask.shape == (len(tree), len(tree))
    for node in range(len(tree)):
        assert set(np.flatnonzero(mask[node])) == {node} | ancestors(tree, node)


@settings(deadline=None)  # the first call compiles
@given(trees())
def test_path_confidence_is_the_product_from_the_root(tree: DraftTree) -> None:
    confidence = tree.confidence.astype(np.float64)
    expected = [np.prod(confidence[tree.path(node)]) for node in range(len(tree))]
    np.testing.assert_allclose(path_confidence(tree), expected, rtol=1e-5)


@given(trees(), st.lists(TOKENS, max_size=5))
def test_follow_returns_the_longest_prefix_in_the_tree(tree: DraftTree, tokens: list[int]) -> None:
    held = set(by_path(tree))
    longest = next(n for n in range(len(tokens), -1, -1) if n == 0 or tuple(tokens[:n]) in held)
    path = tree.follow(tokens)
    assert tree.tokens[path].tolist() == tokens[:longest]
    assert path == (tree.path(path[-1]) if path else [])


@given(st.lists(TOKENS, max_size=6))
def test_a_chain_is_one_path_of_all_its_tokens(tokens: list[int]) -> None:
    chain = DraftTree.chain(tokens)
    assert chain.is_chain
    assert chain.follow(tokens) == list(range(len(tokens)))
    assert chain.ancestor_mask().tolist() == np.tri(len(tokens), dtype=bool).tolist()
    assert chain.confidence.tolist() == [1.0] * len(tokens)


@pytest.mark.parametrize(
    ("tokens", "parents", "confidence"),
    [
        ([1, 2], [ROOT], [1.0, 1.0]),
        ([1], [0], [1.0]),
        ([1, 2], [1, ROOT], [1.0, 1.0]),
        ([1], [-2], [1.0]),
        ([1, 1], [ROOT, ROOT], [0.5, 0.5]),
        ([1, 2, 2], [ROOT, 0, 0], [1.0, 0.5, 0.5]),
    ],
    ids=["length", "own parent", "later parent", "below root", "twins at root", "twins below"],
)
def test_build_refuses_invalid_trees(
    tokens: list[int], parents: list[int], confidence: list[float]
) -> None:
    with pytest.raises(ValueError, match=r"parent|length|sibling"):
        DraftTree.build(tokens, parents, confidence)


@given(trees())
def test_a_pickled_tree_is_complete_and_small(tree: DraftTree) -> None:
    packed = pickle.dumps(tree, pickle.HIGHEST_PROTOCOL)
    assert len(packed) <= 100 + 16 * len(tree)
    unpickled = pickle.loads(packed)
    assert by_path(unpickled) == by_path(tree)
    assert unpickled.depth.tolist() == tree.depth.tolist()
