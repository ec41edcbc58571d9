"""Counts of nodes agree with walking over each tree."""

import numpy as np
import pytest

from policies.flat_trees import flatten, merge_each
from policies.tree import DraftTree
from policies.tree_counts import ACCEPTED, EXPECTED, VERIFIED, count_nodes

NO_SOURCES = np.zeros(0, np.int64)


def counted(*trees: DraftTree, accepted: list[int], ends: list[int], most: int = 4) -> np.ndarray:
    counts = np.zeros((1, most, 3))
    first = np.zeros((len(trees), 1), np.int64)
    arrays = np.array(accepted, np.int64), np.array(ends, np.int64)
    count_nodes(flatten(trees), first, NO_SOURCES, *arrays, counts)
    return counts[0]


def test_nodes_count_by_depth_with_the_probability_of_their_paths() -> None:
    chain = DraftTree.chain([1, 2], [0.5, 0.5])
    tree = DraftTree.build([1, 2, 3], [-1, -1, 1], [0.6, 0.4, 0.5])
    counts = counted(chain, tree, accepted=[0, 1, 2], ends=[1, 3])
    assert counts[:, VERIFIED].tolist() == [3, 2, 0, 0]
    assert counts[:, ACCEPTED].tolist() == [2, 1, 0, 0]
    assert counts[:, EXPECTED] == pytest.approx([0.5 + 0.6 + 0.4, 0.25 + 0.2, 0, 0])


def test_a_tree_that_was_not_verified_counts_for_nothing() -> None:
    chain = DraftTree.chain([1], [0.5])
    counts = counted(chain, chain, accepted=[0], ends=[-1, 1])
    assert counts[0].tolist() == [1, 0.5, 1]


def test_the_last_depth_takes_all_deeper_nodes() -> None:
    counts = counted(DraftTree.chain([1] * 6), accepted=[0, 1, 2, 3, 4], ends=[5])
    assert counts[:, VERIFIED].tolist() == [1, 1, 1, 3]
    assert counts[:, ACCEPTED].tolist() == [1, 1, 1, 2]


def test_a_node_counts_for_the_first_drafter_that_proposed_it() -> None:
    lane, lookup = DraftTree.chain([1, 2]), DraftTree.chain([1, 3, 4])
    trees, sources = merge_each([2], flatten([lane, lookup]))
    counts = np.zeros((2, 4, 3))
    accepted = np.array([0, *np.flatnonzero(np.isin(trees.tokens, [3, 4]))])
    count_nodes(trees, np.array([[1, 0]]), sources, accepted, np.array([3]), counts)
    assert counts[:, :, VERIFIED].tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]
    assert counts[:, :, ACCEPTED].tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]
