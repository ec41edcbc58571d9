"""What became of the nodes of verified draft trees, counted by drafter and depth for metrics."""

from numba import njit

from policies.flat_trees import FlatTrees, Floats, Ints, path_confidences

VERIFIED, EXPECTED, ACCEPTED = range(3)
"""Columns of the counts."""


@njit(cache=True)
def count_nodes(
    trees: FlatTrees, drafters: Ints, sources: Ints, accepted: Ints, ends: Ints, counts: Floats
) -> None:
    """Adds the trees' nodes to `counts` [drafter, depth - 1, column]; its last depth takes all
    deeper nodes.

    `drafters` [tree, bit]: the drafter of each of the tree's proposals. `sources`: for each node,
    bit i is set where the i-th proposal has it, and the node counts for the first of these; empty:
    all nodes are of the first. `accepted`: the accepted nodes of all trees, numbered within the
    tree, those of tree t up to ends[t]; a tree with ends[t] = -1 was not verified.
    """
    most = counts.shape[1]
    path = path_confidences(trees)
    first = 0
    for t in range(len(ends)):
        if ends[t] < 0:
            continue
        begin, end = trees.starts[t], trees.starts[t + 1]
        for node in range(begin, end):
            drafter, level = _place(drafters[t], sources, node, trees.depth[node], most)
            counts[drafter, level, VERIFIED] += 1.0
            counts[drafter, level, EXPECTED] += path[node]
        for number in range(first, ends[t]):
            node = begin + accepted[number]
            drafter, level = _place(drafters[t], sources, node, trees.depth[node], most)
            counts[drafter, level, ACCEPTED] += 1.0
        first = ends[t]


@njit(cache=True)
def _place(drafters: Ints, sources: Ints, node: int, depth: int, most: int) -> tuple[int, int]:
    bit = 0
    if len(sources):
        while bit < len(drafters) - 1 and not sources[node] >> bit & 1:
            bit += 1
    return drafters[bit], min(depth, most) - 1
