"""All draft trees of a round in one set of arrays, for compiled loops: a Python loop over their
nodes would take too long for a round."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.tree import ROOT, DraftTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class FlatTrees(NamedTuple):
    """The nodes of many trees, one tree after the other, each in its own topological order."""

    starts: Ints
    """Tree t has the nodes from starts[t] up to starts[t + 1]."""
    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    """Numbered within the tree."""
    depth: NDArray[np.int32]
    confidence: NDArray[np.float32]

    @property
    def sizes(self) -> Ints:
        # np.diff takes four times as long for so few.
        return self.starts[1:] - self.starts[:-1]


def flatten(trees: Sequence[DraftTree]) -> FlatTrees:
    at_least_one = trees or [DraftTree.empty()]
    starts = np.array([*accumulate([len(tree.tokens) for tree in trees], initial=0)], np.int64)
    return _joined(starts, at_least_one)


def _joined(starts: Ints, parts: Sequence[DraftTree | FlatTrees]) -> FlatTrees:
    return FlatTrees(
        starts,
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.parents for part in parts]),
        np.concatenate([part.depth for part in parts]),
        np.concatenate([part.confidence for part in parts]),
    )


NO_TREES = flatten([DraftTree.empty()])
"""A set of one empty tree: the draft of a request for which nothing is proposed."""

TreeRef = tuple[FlatTrees, int]
"""A set of trees, and the number of one tree in it."""


def gather_trees(refs: Sequence[TreeRef]) -> FlatTrees:
    """The referenced trees, which may be of different sets, as one set in this order."""
    sets = {id(flat): flat for flat, _ in refs}
    flats = list(sets.values()) or [NO_TREES]
    trees = accumulate([len(flat.starts) - 1 for flat in flats], initial=0)
    first = dict(zip(sets, trees, strict=False))
    chosen = np.array([first[id(flat)] + number for flat, number in refs], np.int64)
    starts, *columns = _concatenated(flats)
    sizes = starts[chosen + 1] - starts[chosen]
    ends = np.cumsum(sizes)
    nodes = np.arange(sizes.sum()) + np.repeat(starts[chosen] - ends + sizes, sizes)
    return FlatTrees(np.append(0, ends), *(column[nodes] for column in columns))


def _concatenated(flats: Sequence[FlatTrees]) -> FlatTrees:
    """The trees of all sets, at least one set, as one."""
    if len(flats) == 1:
        return flats[0]
    nodes = accumulate([len(flat.tokens) for flat in flats], initial=0)
    ends = [flat.starts[1:] + before for flat, before in zip(flats, nodes, strict=False)]
    return _joined(np.concatenate([flats[0].starts[:1], *ends]), flats)


def split(flat: FlatTrees) -> list[DraftTree]:
    bounds = flat.starts.tolist()
    return [
        DraftTree(
            flat.tokens[begin:end],
            flat.parents[begin:end],
            flat.depth[begin:end],
            flat.confidence[begin:end],
        )
        for begin, end in pairwise(bounds)
    ]


def prune_each(flat: FlatTrees, keep: Mask) -> FlatTrees:
    """Each tree reduced to the nodes in `keep` and all their ancestors, in the old order."""
    return flat if np.count_nonzero(keep) == len(keep) else FlatTrees(*_prune(flat, keep.copy()))


class Merged(NamedTuple):
    """The trees of several drafters, merged into one tree for each request."""

    trees: FlatTrees
    sources: Ints
    """For each node, bit i is set where the i-th of the request's trees has it."""


def merge_each(parts: Sequence[int], flat: FlatTrees) -> Merged:
    """Merges the trees of each request by token path. `parts`: each request's number of trees;
    `flat` has them one request after the other.

    A shared node keeps the largest of its confidences, since further drafters that propose a token
    make it no less likely. Siblings that then sum to more than 1 are scaled down to 1.
    """
    *merged, sources = _merge(np.array(parts, np.int64), flat)
    return Merged(FlatTrees(*merged), sources)


# Compiled loops take NamedTuples but return plain tuples of few arrays: for each object that numba
# returns to Python it looks up the class, which takes longer than such a loop.


@njit(cache=True)
def _prune(flat: FlatTrees, kept: Mask) -> tuple[NDArray[Any], ...]:
    starts = np.zeros_like(flat.starts)
    parents = np.empty_like(flat.parents)
    new_place = np.empty(len(kept), np.int64)
    for t in range(len(starts) - 1):
        begin, end = flat.starts[t], flat.starts[t + 1]
        for node in range(end - 1, begin - 1, -1):
            if kept[node] and flat.parents[node] != ROOT:
                kept[begin + flat.parents[node]] = True
        count = 0
        for node in range(begin, end):
            if kept[node]:
                above = flat.parents[node]
                parents[starts[t] + count] = ROOT if above == ROOT else new_place[begin + above]
                new_place[node] = count
                count += 1
        starts[t + 1] = starts[t] + count
    return (
        starts,
        flat.tokens[kept],
        parents[: starts[-1]],
        flat.depth[kept],
        flat.confidence[kept],
    )


@njit(cache=True)
def deepest_of(starts: Ints, depth: NDArray[np.int32]) -> Ints:
    """The depth of each tree."""
    deepest = np.zeros(len(starts) - 1, np.int64)
    for tree in range(len(deepest)):
        for node in range(starts[tree], starts[tree + 1]):
            deepest[tree] = max(deepest[tree], depth[node])
    return deepest


@njit(cache=True)
def path_confidences(flat: FlatTrees) -> Floats:
    """The product of the confidences from the root to each node."""
    path = flat.confidence.astype(np.float64)
    for tree in range(len(flat.starts) - 1):
        begin = flat.starts[tree]
        for node in range(begin, flat.starts[tree + 1]):
            if flat.parents[node] != ROOT:
                path[node] *= path[begin + flat.parents[node]]
    return path


@njit(cache=True)
def best_chains(flat: FlatTrees) -> Mask:
    """For each tree the path from the root to a leaf with the largest sum of path confidences: the
    chain with the most expected accepted tokens. Ties go to the first, as siblings are in the
    drafter's order of preference."""
    nodes, total = len(flat.tokens), path_confidences(flat)
    is_leaf, kept = np.ones(nodes, np.bool_), np.zeros(nodes, np.bool_)
    for t in range(len(flat.starts) - 1):
        begin, end = flat.starts[t], flat.starts[t + 1]
        for node in range(begin, end):
            if flat.parents[node] != ROOT:
                above = begin + flat.parents[node]
                total[node] += total[above]
                is_leaf[above] = False
        best = -1
        for node in range(begin, end):
            if is_leaf[node] and (best < 0 or total[node] > total[best]):
                best = node
        while best >= 0:
            kept[best] = True
            above = flat.parents[best]
            best = -1 if above == ROOT else begin + above
    return kept


@njit(cache=True)
def _merge(parts: Ints, flat: FlatTrees) -> tuple[NDArray[Any], ...]:
    nodes = len(flat.tokens)
    starts = np.zeros(len(parts) + 1, np.int64)
    tokens, parents = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
    depth, confidence = np.empty(nodes, np.int32), np.empty(nodes, np.float32)
    sources = np.zeros(nodes, np.int64)
    place = np.empty(nodes, np.int64)
    part = 0
    for request in range(len(parts)):
        begin = end = starts[request]
        for bit in range(parts[request]):
            first = flat.starts[part]
            for node in range(first, flat.starts[part + 1]):
                above = flat.parents[node]
                parent = ROOT if above == ROOT else place[first + above]
                at = begin
                while at < end and (parents[at] != parent or tokens[at] != flat.tokens[node]):
                    at += 1
                if at == end:
                    tokens[at], parents[at] = flat.tokens[node], parent
                    depth[at], confidence[at] = flat.depth[node], flat.confidence[node]
                    end += 1
                else:
                    confidence[at] = max(confidence[at], flat.confidence[node])
                sources[at] |= 1 << bit
                place[node] = at - begin
            part += 1
        cap_siblings(parents[begin:end], confidence[begin:end])
        starts[request + 1] = end
    return starts, tokens[:end], parents[:end], depth[:end], confidence[:end], sources[:end]


@njit(cache=True)
def cap_siblings(parents: NDArray[np.int32], confidence: NDArray[np.float32]) -> None:
    """Scales the confidences of one tree in place, so that siblings sum to at most 1."""
    if _is_chain(parents):
        return
    total = np.zeros(len(parents) + 1)
    for node in range(len(parents)):
        total[parents[node] + 1] += confidence[node]
    for node in range(len(parents)):
        confidence[node] /= max(total[parents[node] + 1], 1.0)


@njit(cache=True)
def _is_chain(parents: NDArray[np.int32]) -> bool:
    chain = True
    for node in range(len(parents)):
        chain &= parents[node] == node - 1
    return chain
