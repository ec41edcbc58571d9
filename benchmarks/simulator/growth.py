"""One request's draft, level by level, as a simulated drafter proposes it.

Growing is deterministic, so a draft is grown to its ordered depth at once and cut where the
speculation policy stops it; only the levels that were really drafted cost time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
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
        """Path confidences of this level; level 0 has none."""
        if self._path is None:
            chain = self.ends[-1] == self.depth
            confidence = self.grown.confidence
            self._path = np.cumprod(confidence) if chain else self.grown.path_confidence()
        return self._path[self.ends[max(0, level - 1)] : self.ends[level]]


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


class _Tip(NamedTuple):
    """A node of the deepest level."""

    path: float
    node: int
    believed: int
    """The script's position whose confidences its children have."""
    right: bool


def _grow_tree(
    request: str, context: int, script: DrafterScript, first: int, depth: int, width: int
) -> Growth:
    """AdaServe's beam: of all children of a level the `width` likeliest form the next."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    confidence: list[float] = []
    ends = [0]
    right = 0
    level = [_Tip(1.0, ROOT, first, True)]
    for position in range(first, first + depth):
        children = [
            (tip.path * belief, tip, rank, belief)
            for tip in level
            for rank, belief in enumerate(script.confidence[tip.believed].tolist())
            if belief > 0
        ]
        children.sort(key=lambda child: -child[0])
        level = []
        for path, tip, rank, belief in children[:width]:
            token = int(script.tokens[position, rank])
            on_truth = tip.right and token == script.truth[position]
            # Behind a mistake a drafter is as sure of itself as it is anywhere else.
            elsewhere = (31 * position + 17 * len(tokens)) % BLOCK
            believed = position + 1 if on_truth else elsewhere
            level.append(_Tip(path, len(tokens), believed, on_truth))
            tokens.append(token)
            parents.append(tip.node)
            depths.append(position - first + 1)
            confidence.append(belief)
            right = len(ends) if on_truth else right
        if not level:
            break
        ends.append(len(tokens))
    tree = DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array(depths, np.int32),
        np.array(confidence, np.float32),
    )
    return Growth(request, context, tree, ends, right)
