"""One request's draft, level by level, as a simulated drafter proposes it.

Proposals are deterministic, so a draft is built to its ordered depth at once and cut where the
speculation policy stops it; only the levels that are kept cost time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from cluster.plan.simulator.outputs import DrafterOutput
from cluster.plan.simulator.randomness import BLOCK
from policies.tree import ROOT, DraftTree

_CHAIN_PARENTS = np.arange(ROOT, BLOCK, dtype=np.int32)
_CHAIN_DEPTH = np.arange(1, BLOCK, dtype=np.int32)

Floats = NDArray[np.float32]


@dataclass(slots=True)
class DraftLevels:
    request: str
    context: int
    """Committed tokens."""
    full: DraftTree
    """To the ordered depth."""
    ends: Sequence[int]
    """Number of nodes up to each level, from level 0 (none) on."""
    right: int
    """Levels, from the root on, that hold the target's token."""
    levels: int = 0
    """Levels that are drafted."""
    _path: Floats | None = None
    """Path confidences; None until they are needed (of a chain)."""

    @property
    def depth(self) -> int:
        return len(self.ends) - 1

    @property
    def tree(self) -> DraftTree:
        """The drafted levels."""
        size, full = self.ends[self.levels], self.full
        if size == len(full):
            return full
        return DraftTree(
            full.tokens[:size], full.parents[:size], full.depth[:size], full.confidence[:size]
        )

    def width(self, level: int) -> int:
        """Nodes at this level, which are the rows of the forward that proposes the next one."""
        return self.ends[level] - self.ends[level - 1]

    def frontier(self, level: int) -> Floats:
        """Path confidences of this level, from 1 on."""
        if self._path is None:
            self._path = np.cumprod(self.full.confidence)
        return self._path[self.ends[level - 1] : self.ends[level]]


def grow(
    request: str, context: int, output: DrafterOutput, first: int, depth: int, width: int
) -> DraftLevels:
    """The draft for the output positions from `first` on."""
    if depth <= 0:
        return DraftLevels(request, context, DraftTree.empty(), range(1), 0)
    depth = min(depth, BLOCK - 1)
    output.extend(first + depth + 1)
    if width == 1:
        return _grow_chain(request, context, output, first, depth)
    return _grow_tree(request, context, output, first, depth, width)


def _grow_chain(
    request: str, context: int, output: DrafterOutput, first: int, depth: int
) -> DraftLevels:
    depth = min(depth, output.proposing[first])
    end = first + depth
    chain = DraftTree(
        output.tokens[first:end, 0],
        _CHAIN_PARENTS[:depth],
        _CHAIN_DEPTH[:depth],
        output.confidence[first:end, 0],
    )
    return DraftLevels(request, context, chain, range(depth + 1), min(depth, output.right[first]))


def _grow_tree(
    request: str, context: int, output: DrafterOutput, first: int, depth: int, width: int
) -> DraftLevels:
    *tree, path, ends, right = _beam(
        output.tokens, output.target_tokens, output.confidence, first, depth, width
    )
    return DraftLevels(request, context, DraftTree(*tree), ends.tolist(), right, _path=path)


@njit(cache=True)
def _beam(
    proposed: NDArray[np.int32],
    target: NDArray[np.int32],
    drawn: Floats,
    first: int,
    depth: int,
    width: int,
) -> tuple[Any, ...]:
    """AdaServe's beam (Algorithm 2, step 1): of all children of a level the `width` likeliest form
    the next. `proposed` and `drawn` (confidences) are by position and rank. Returns the tree's
    arrays, its path confidences, the number of nodes up to each level, and the number of levels
    with the target's token."""
    most, ranks = depth * width, proposed.shape[1]
    tokens, parents = np.empty(most, np.int32), np.empty(most, np.int32)
    depths, confidence = np.empty(most, np.int32), np.empty(most, np.float32)
    path = np.empty(most)
    source = np.empty(most, np.int64)  # the position whose confidences a node's children have
    on_target = np.empty(most, np.bool_)
    ends = np.zeros(depth + 1, np.int64)
    levels = right = 0
    while levels < depth:
        position = first + levels
        start, end = ends[max(0, levels - 1)], ends[levels]
        leaves = end - start if levels else 1
        paths = np.zeros(leaves * ranks)
        for leaf in range(leaves):
            above = path[start + leaf] if levels else 1.0
            where = source[start + leaf] if levels else first
            paths[leaf * ranks : (leaf + 1) * ranks] = above * drawn[where].astype(np.float64)
        size = end
        for child in np.argsort(-paths, kind="mergesort")[:width]:
            if paths[child] <= 0.0:
                break
            leaf, rank = start + child // ranks, child % ranks
            tokens[size] = proposed[position, rank]
            parents[size] = leaf if levels else ROOT
            depths[size] = levels + 1
            confidence[size] = drawn[source[leaf] if levels else first, rank]
            path[size] = paths[child]
            on_target[size] = tokens[size] == target[position] and (levels == 0 or on_target[leaf])
            # After a wrong token, confidences are those of another, arbitrary position.
            source[size] = position + 1 if on_target[size] else (31 * position + 17 * size) % BLOCK
            if on_target[size]:
                right = levels + 1
            size += 1
        if size == end:
            break
        levels += 1
        ends[levels] = size
    size = ends[levels]
    return (
        tokens[:size],
        parents[:size],
        depths[:size],
        confidence[:size],
        path[:size].astype(np.float32),
        ends[: levels + 1],
        right,
    )
