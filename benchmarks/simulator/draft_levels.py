"""One request's draft, level by level, as a simulated drafter proposes it.

Growing is deterministic, so a draft is grown to its ordered depth at once and cut where the
speculation policy stops it; only the levels that were really drafted cost time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from benchmarks.simulator.randomness import BLOCK
from benchmarks.simulator.scripts import DrafterScript
from policies.tree import ROOT, DraftTree

_CHAIN_PARENTS = np.arange(ROOT, BLOCK, dtype=np.int32)
_CHAIN_DEPTH = np.arange(1, BLOCK, dtype=np.int32)

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Growth:
    request: str
    context: int
    """Committed tokens."""
    grown: DraftTree
    ends: Sequence[int]
    """How many nodes there are up to each level, level 0 (no node) included."""
    right: int
    """Levels from the root down that hold the target's own token."""
    levels: int = 0
    """That the policy lets the drafter draft."""
    _path: Floats | None = None
    """Confidences; None: of a chain, nobody has asked yet."""

    @property
    def depth(self) -> int:
        return len(self.ends) - 1

    @property
    def tree(self) -> DraftTree:
        size = self.ends[self.levels]
        if size == len(self.grown):
            return self.grown
        grown = self.grown
        return DraftTree(
            grown.tokens[:size], grown.parents[:size], grown.depth[:size], grown.confidence[:size]
        )

    def width(self, level: int) -> int:
        """Nodes at this level: the rows of the forward that proposes the next one."""
        return self.ends[level] - self.ends[level - 1]

    def frontier(self, level: int) -> Floats:
        """Path confidences of this level, from 1 on."""
        if self._path is None:
            self._path = np.cumprod(self.grown.confidence)
        return self._path[self.ends[level - 1] : self.ends[level]]


def grow(
    request: str, context: int, script: DrafterScript, first: int, depth: int, width: int
) -> Growth:
    """Drafts the output positions from `first` on."""
    if depth <= 0:
        return Growth(request, context, DraftTree.empty(), range(1), 0)
    depth = min(depth, BLOCK - 1)
    script.write(first + depth + 1)
    if width == 1:
        return _grow_chain(request, context, script, first, depth)
    return _grow_tree(request, context, script, first, depth, width)


def _grow_chain(
    request: str, context: int, script: DrafterScript, first: int, depth: int
) -> Growth:
    depth = min(depth, script.spoken[first])
    end = first + depth
    chain = DraftTree(
        script.tokens[first:end, 0],
        _CHAIN_PARENTS[:depth],
        _CHAIN_DEPTH[:depth],
        script.confidence[first:end, 0],
    )
    return Growth(request, context, chain, range(depth + 1), min(depth, script.right[first]))


def _grow_tree(
    request: str, context: int, script: DrafterScript, first: int, depth: int, width: int
) -> Growth:
    *tree, path, ends, right = _beam(
        script.tokens, script.truth, script.confidence, first, depth, width
    )
    return Growth(request, context, DraftTree(*tree), ends.tolist(), right, _path=path)


@njit(cache=True)
def _beam(
    said: NDArray[np.int32],
    truth: NDArray[np.int32],
    belief: Floats,
    first: int,
    depth: int,
    width: int,
) -> tuple[Any, ...]:
    """AdaServe's beam: of all children of a level the `width` likeliest form the next. `said` and
    `belief`: by position and rank. Returns the tree's arrays, its path confidences, how many nodes
    there are up to each level, and the levels with the target's own token."""
    most, ranks = depth * width, said.shape[1]
    tokens, parents = np.empty(most, np.int32), np.empty(most, np.int32)
    depths, confidence = np.empty(most, np.int32), np.empty(most, np.float32)
    path = np.empty(most)
    believed = np.empty(most, np.int64)  # the position whose confidences a node's children have
    on_truth = np.empty(most, np.bool_)
    ends = np.zeros(depth + 1, np.int64)
    levels = right = 0
    while levels < depth:
        position = first + levels
        begin, end = ends[max(0, levels - 1)], ends[levels]
        tips = end - begin if levels else 1
        worth = np.zeros(tips * ranks)
        for tip in range(tips):
            above = path[begin + tip] if levels else 1.0
            where = believed[begin + tip] if levels else first
            worth[tip * ranks : (tip + 1) * ranks] = above * belief[where].astype(np.float64)
        size = end
        for child in np.argsort(-worth, kind="mergesort")[:width]:
            if worth[child] <= 0.0:
                break
            tip, rank = begin + child // ranks, child % ranks
            tokens[size] = said[position, rank]
            parents[size] = tip if levels else ROOT
            depths[size] = levels + 1
            confidence[size] = belief[believed[tip] if levels else first, rank]
            path[size] = worth[child]
            on_truth[size] = tokens[size] == truth[position] and (levels == 0 or on_truth[tip])
            # Behind a mistake a drafter is as sure of itself as it is anywhere else.
            believed[size] = position + 1 if on_truth[size] else (31 * position + 17 * size) % BLOCK
            if on_truth[size]:
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
