"""The draft trees of a round as one set of flat arrays, and what its forward costs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.protocols import Candidate, Mask, RoundContext
from policies.request import RequestView

_STRAIGHT = 1e-9
"""Relative error of a point on a straight line."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """All nodes of all candidates, tree behind tree, each in its own topological order."""

    sizes: Ints
    owner: Ints
    """Which candidate a node belongs to."""
    depth: Ints
    path: Floats
    """Path confidence: f(v) of AdaServe, AR of SpecServe (eq. 8)."""

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> "Forest":
        sizes = np.array([len(one.tree.tokens) for one in candidates], np.int64)
        owner = np.repeat(np.arange(len(candidates)), sizes)
        if not len(owner):
            return cls(sizes, owner, owner, np.zeros(0))
        parents = np.concatenate([one.tree.parents for one in candidates]).astype(np.int64)
        depth = np.concatenate([one.tree.depth for one in candidates]).astype(np.int64)
        path = np.concatenate([one.tree.confidence for one in candidates]).astype(np.float64)
        above = parents + (np.cumsum(sizes) - sizes)[owner]
        # A level at a time: as many steps as the deepest tree has levels, whatever the number
        # of nodes.
        for level in range(2, int(depth.max()) + 1):
            of_level = np.flatnonzero(depth == level)
            path[of_level] *= path[above[of_level]]
        return cls(sizes, owner, depth, path)

    def __len__(self) -> int:
        return len(self.owner)

    def gains(self, kept: Ints) -> Floats:
        """Σ f of each candidate's kept nodes: the draft tokens that it should gain."""
        tokens = np.bincount(self.owner[kept], self.path[kept], len(self.sizes))
        return tokens.astype(np.float64)

    def trusted(self, trust: Floats) -> "Forest":
        """With each tree's confidences scaled by what its request has made of them so far."""
        path = np.minimum(self.path * trust[self.owner], 1.0)
        return Forest(self.sizes, self.owner, self.depth, path)

    def best_first(self) -> Ints:
        """Nodes by path confidence, descending; a parent stands before its children, for it is
        at least as probable and comes first in its tree."""
        return np.argsort(-self.path, kind="stable")

    def shallow_first(self) -> Ints:
        """Nodes level by level, requests in their order."""
        return np.argsort(self.depth, kind="stable")

    def masks(self, kept: Ints) -> list[Mask]:
        """The kept nodes as one mask per candidate."""
        mask = np.zeros(len(self), np.bool_)
        mask[kept] = True
        ends = np.cumsum(self.sizes).tolist()
        return [mask[end - size : end] for size, end in zip(self.sizes.tolist(), ends, strict=True)]


def room(requests: int, context: RoundContext) -> int:
    """Draft tokens that fit the verification beside the roots and what rides along."""
    return max(0, context.verify_budget - requests - context.other_tokens)


def tokens_read(requests: Sequence[RequestView]) -> int:
    """Committed tokens of all requests: `context` of the cost model."""
    return sum(request.prompt_len + request.generated for request in requests)


def verify_seconds(context: RoundContext, read: float, roots: int, most: int) -> Floats:
    """Of one verification with 0, 1, ... `most` draft tokens beside the roots.

    Our cost models are convex in the tokens, so where the middle of a stretch lies on its chord
    all of it does: a few points tell the whole curve.
    """
    fixed = roots + context.other_tokens
    known = {nodes: context.verify.predict(read, fixed + nodes) for nodes in (0, most)}
    open_stretches = [(0, most)]
    while open_stretches:
        low, high = open_stretches.pop()
        middle = (low + high) // 2
        if middle == low:
            continue
        seconds = known[middle] = context.verify.predict(read, fixed + middle)
        rise = (known[high] - known[low]) / (high - low)
        if abs(known[low] + rise * (middle - low) - seconds) > _STRAIGHT * seconds:
            open_stretches += [(low, middle), (middle, high)]
    points = sorted(known)
    return np.interp(np.arange(most + 1), points, [known[nodes] for nodes in points])


def depth_left(request: RequestView) -> int:
    """Draft tokens that the output has room for, beside the target's own."""
    return max(0, request.max_tokens - request.generated - 1)
