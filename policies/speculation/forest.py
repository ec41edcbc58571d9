"""The path confidences of a round's draft trees, the room for draft tokens in its verification, and
the time of that verification."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.cost import ForwardCost, forward_seconds
from policies.flat_trees import FlatTrees, path_confidences
from policies.protocols import DraftLimit, LaneBatch, Mask, RoundContext
from policies.request import RequestView

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Forest(NamedTuple):
    """All nodes of all requests' trees, one tree after the other, each in topological order."""

    starts: Ints
    """Request r has the nodes from starts[r] up to starts[r + 1]."""
    owner: Ints
    """The request of each node."""
    depth: Ints
    path: Floats
    """Path confidence of each node: f(v) of AdaServe, AR of SpecServe (eq. 8)."""

    @property
    def nodes(self) -> int:
        return len(self.owner)

    def best_first(self) -> Ints:
        """Nodes by descending path confidence. A parent comes before its children, since it is at
        least as probable and precedes them in its tree."""
        return np.argsort(-self.path, kind="stable")

    def shallow_first(self) -> Ints:
        """Nodes by depth, within a level in the order of requests."""
        return np.argsort(self.depth, kind="stable")

    def mask(self, kept: Ints) -> Mask:
        """The kept nodes as a mask over all nodes."""
        mask = np.zeros(self.nodes, np.bool_)
        mask[kept] = True
        return mask


def draft_room(requests: int, context: RoundContext) -> int:
    """The most draft tokens of a verification, beside the requests' roots and prefill chunks."""
    return max(0, context.most_tokens - requests - context.prefill_tokens)


def budgeted_draft_room(requests: int, context: RoundContext) -> int:
    """The same within AdaServe's budget, whose eq. 1 counts the nodes of trees only."""
    return max(0, min(context.verify_budget - requests, draft_room(requests, context)))


def context_tokens(requests: Sequence[RequestView]) -> int:
    """Committed tokens of all requests: the cost model's `context`."""
    return sum(request.prompt_len + request.generated for request in requests)


def verify_seconds(context: RoundContext, read: float, roots: int, most: int) -> Floats:
    """The time of a verification with 0, 1, ... `most` draft tokens beside the roots; `read`: the
    cost model's context."""
    return seconds_by_draft_tokens(
        context.verify.piecewise, read, roots + context.prefill_tokens, most
    )


def draft_limits(batch: LaneBatch, depth: int, width: int = 1) -> list[DraftLimit]:
    """The same for all requests, but no draft is longer than is useful."""
    return [DraftLimit(min(depth, draft_tokens_left(one)), width) for one in batch.requests]


def draft_tokens_left(request: RequestView) -> int:
    """The longest useful draft: tokens left up to `max_tokens`, less the target's own."""
    return max(0, request.max_tokens - request.generated - 1)


@njit(cache=True)
def seconds_by_draft_tokens(cost: ForwardCost, read: float, fixed: int, most: int) -> Floats:
    seconds = np.empty(most + 1)
    for nodes in range(most + 1):
        seconds[nodes] = forward_seconds(cost, read, float(fixed + nodes))
    return seconds


@njit(cache=True)
def forest_of(flat: FlatTrees) -> Forest:
    nodes = len(flat.tokens)
    owner, depth = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    for tree in range(len(flat.starts) - 1):
        for node in range(flat.starts[tree], flat.starts[tree + 1]):
            owner[node], depth[node] = tree, flat.depth[node]
    return Forest(flat.starts, owner, depth, path_confidences(flat))
