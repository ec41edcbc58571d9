"""The draft trees of one call while they grow, level by level, in arrays shared with compiled code.

AdaServe's beam search (its step 1): of all children of a request's deepest level, the `width`
best by path confidence form the next level.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.protocol import DraftStep, Start
from engine.sampling.sampler import Row
from policies.tree import ROOT, DraftTree

if TYPE_CHECKING:  # loads llguidance
    from engine.grammar.matcher import OutputMatcher


@dataclass(frozen=True, slots=True)
class DraftJob:
    """One request of a draft call; the call's arrays are indexed by the job's number."""

    request: str
    start: Start
    committed: Sequence[int]
    depth: int
    """Levels that may be drafted; 0 only catches up."""
    width: int
    scored: bool = False
    """Also compare the committed tokens with what this drafter would have drafted."""
    matcher: "OutputMatcher | None" = None
    """The one of a request with a grammar, whose drafts keep to it."""

    def scored_rows(self, first: int, count: int) -> list[Row]:
        """Sampling inputs after each of the `count` committed tokens from `first` on."""
        params, committed = self.start.params, self.committed
        return [
            Row(
                params,
                self.start.seed,
                position,
                self.start.prompt_len,
                committed[:position] if params.has_penalties else committed,
            )
            for position in range(first + 1, first + 1 + count)
        ]


class TreeArrays(NamedTuple):
    """One tree per job; nodes in topological order, one level after the other."""

    tokens: NDArray[np.int32]  # [jobs, nodes]
    parents: NDArray[np.int32]
    confidence: NDArray[np.float32]
    path_confidence: NDArray[np.float32]
    node_depth: NDArray[np.int32]
    size: NDArray[np.int64]  # [jobs]: nodes so far
    level: NDArray[np.int64]  # [jobs]: the first node of the deepest level
    depth: NDArray[np.int64]  # [jobs]: levels so far
    width: NDArray[np.int64]  # [jobs]


class GrowingTrees:
    """The trees of all jobs of one draft call."""

    def __init__(self, jobs: Sequence[DraftJob]) -> None:
        self.jobs = jobs
        count = len(jobs)
        nodes = max((job.depth * job.width for job in jobs), default=0)
        tokens, parents, node_depth = np.zeros((3, count, nodes), np.int32)
        confidence, path_confidence = np.zeros((2, count, nodes), np.float32)
        size, level, depth = np.zeros((3, count), np.int64)
        width = np.array([job.width for job in jobs], np.int64)
        self.arrays = TreeArrays(
            tokens, parents, confidence, path_confidence, node_depth, size, level, depth, width
        )

    def frontier(self, job: int) -> range:
        """The nodes of the deepest level."""
        return range(int(self.arrays.level[job]), int(self.arrays.size[job]))

    def next_step(self, depth: int, drafting: Sequence[int]) -> DraftStep:
        """The speculation policy's input before the next level of these jobs."""
        path, level, size = self.arrays.path_confidence, self.arrays.level, self.arrays.size
        return DraftStep(
            depth,
            [self.jobs[job].request for job in drafting],
            [path[job, level[job] : size[job]] for job in drafting],
        )

    def ancestors(self, job: int) -> NDArray[np.bool_]:
        """mask[i, j]: whether node i of the frontier attends to node j of the tree."""
        frontier = self.frontier(job)
        mask = np.zeros((len(frontier), frontier.stop), np.bool_)
        for row, node in enumerate(frontier):
            mask[row, self._path(job, node)] = True
        return mask

    def rows(self, job: int) -> list[Row]:
        """Sampling inputs for the children of each frontier node, or of the root at first."""
        one, tokens = self.jobs[job], self.arrays.tokens[job]
        start, matcher = one.start, one.matcher
        position = len(one.committed) + int(self.arrays.depth[job])
        rows = []
        for node in self.frontier(job) or [ROOT]:
            path = tuple(tokens[self._path(job, node)].tolist())
            allowed = None if matcher is None else matcher.allowed(path)
            rows.append(
                Row(
                    start.params,
                    start.seed,
                    position,
                    start.prompt_len,
                    one.committed,
                    path,
                    allowed,
                )
            )
        return rows

    def grow(
        self,
        drafting: Sequence[int],
        tokens: NDArray[np.int32],
        confidence: NDArray[np.float32],
    ) -> None:
        """Adds a level; tokens[i] are the i-th frontier row's best children, descending."""
        grow_level(self.arrays, np.array(drafting, np.int64), tokens, confidence)

    def tree(self, job: int, size: int | None = None) -> DraftTree:
        """The first `size` nodes, all of them by default."""
        arrays = self.arrays
        end = arrays.size[job] if size is None else size
        return DraftTree(
            arrays.tokens[job, :end].copy(),
            arrays.parents[job, :end].copy(),
            arrays.node_depth[job, :end].copy(),
            arrays.confidence[job, :end].copy(),
        )

    def _path(self, job: int, node: int) -> list[int]:
        """The nodes from the root's child to `node`."""
        parents = self.arrays.parents[job]
        path = []
        while node != ROOT:
            path.append(node)
            node = int(parents[node])
        return path[::-1]


@njit(cache=True, nogil=True)
def grow_level(
    trees: TreeArrays,
    drafting: NDArray[np.int64],
    tokens: NDArray[np.int32],
    confidence: NDArray[np.float32],
) -> None:
    """Merges each request's candidate rows, each descending by confidence, into its next level.

    The merge is stable: of equals the earlier parent wins. A candidate of confidence 0 (removed by
    top-k, top-p or min-p) never becomes a node.
    """
    row = 0
    for job in drafting:
        first, last = trees.level[job], trees.size[job]
        parents = max(last - first, 1)  # only the root while the tree is empty
        taken = np.zeros(parents, np.int64)  # candidates used of each parent
        node = last
        for _ in range(trees.width[job]):
            best, best_path = -1, np.float32(0.0)
            for parent in range(parents):
                if taken[parent] == tokens.shape[1]:
                    continue
                path = confidence[row + parent, taken[parent]]
                if last > 0:
                    path *= trees.path_confidence[job, first + parent]
                if path > best_path:
                    best, best_path = parent, path
            if best < 0:
                break
            rank = taken[best]
            taken[best] += 1
            trees.tokens[job, node] = tokens[row + best, rank]
            trees.parents[job, node] = first + best if last > 0 else ROOT
            trees.confidence[job, node] = confidence[row + best, rank]
            trees.path_confidence[job, node] = best_path
            trees.node_depth[job, node] = trees.depth[job] + 1
            node += 1
        trees.level[job] = last
        trees.size[job] = node
        trees.depth[job] += 1
        row += parents
