"""The draft trees of a round as one set of flat arrays, and what its forward costs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.cost import PiecewiseLinear, forward_seconds
from policies.flat_trees import FlatTrees
from policies.protocols import Mask, RoundContext
from policies.request import RequestView
from policies.tree import ROOT

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Forest(NamedTuple):
    """All nodes of all candidates, tree behind tree, each in its own topological order."""

    starts: Ints
    """Candidate c has the nodes from starts[c] up to starts[c + 1]."""
    owner: Ints
    """Which candidate a node belongs to."""
    depth: Ints
    path: Floats
    """Path confidence: f(v) of AdaServe, AR of SpecServe (eq. 8)."""

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)

    @property
    def nodes(self) -> int:
        return len(self.owner)

    def best_first(self) -> Ints:
        """Nodes by path confidence, descending; a parent stands before its children, for it is
        at least as probable and comes first in its tree."""
        return np.argsort(-self.path, kind="stable")

    def shallow_first(self) -> Ints:
        """Nodes level by level, requests in their order."""
        return np.argsort(self.depth, kind="stable")

    def mask(self, kept: Ints) -> Mask:
        """Of all nodes those kept."""
        mask = np.zeros(self.nodes, np.bool_)
        mask[kept] = True
        return mask


def draft_room(requests: int, context: RoundContext) -> int:
    """Draft tokens that fit the verification beside the roots and what rides along."""
    return max(0, context.most_tokens - requests - context.prefill_tokens)


def budgeted_draft_room(requests: int, context: RoundContext) -> int:
    """Those that also fit AdaServe's budget."""
    return max(
        0, min(context.verify_budget, context.most_tokens) - requests - context.prefill_tokens
    )


def context_tokens(requests: Sequence[RequestView]) -> int:
    """Committed tokens of all requests: `context` of the cost model."""
    return sum(request.prompt_len + request.generated for request in requests)


def verify_seconds(context: RoundContext, read: float, roots: int, most: int) -> Floats:
    """Of one verification with 0, 1, ... `most` draft tokens beside the roots."""
    return seconds_by_draft_tokens(
        context.verify.piecewise, read, roots + context.prefill_tokens, most
    )


def draft_tokens_left(request: RequestView) -> int:
    """Draft tokens that the output has room for, beside the target's own."""
    return max(0, request.max_tokens - request.generated - 1)


@njit(cache=True)
def seconds_by_draft_tokens(cost: PiecewiseLinear, read: float, fixed: int, most: int) -> Floats:
    seconds = np.empty(most + 1)
    for nodes in range(most + 1):
        seconds[nodes] = forward_seconds(cost, read, float(fixed + nodes))
    return seconds


@njit(cache=True)
def forest_of(flat: FlatTrees) -> Forest:
    nodes = len(flat.tokens)
    owner, depth, path = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes)
    for tree in range(len(flat.starts) - 1):
        begin = flat.starts[tree]
        for node in range(begin, flat.starts[tree + 1]):
            owner[node], depth[node] = tree, flat.depth[node]
            path[node] = flat.confidence[node]
            if flat.parents[node] != ROOT:
                path[node] *= path[begin + flat.parents[node]]
    return Forest(flat.starts, owner, depth, path)
