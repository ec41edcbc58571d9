"""Showing draft trees to the speculation policy level by level, for drafters without a model.

A lookup grows its tree in one go, for that costs next to nothing; what the policy does not want of
it is cut off. So the policy sees what it sees of a model, a level at a time.
"""

from collections.abc import Sequence
from itertools import count

import numpy as np

from engine.drafters.lookup_tree import Grown
from engine.protocol import (
    ContinueDrafting,
    Draft,
    DraftOrder,
    DraftStep,
    Missing,
    NoRoom,
    to_ordered_depth,
)
from policies.tree import DraftTree

_NO_NODES = np.empty(0, np.float32)


def as_far_as_wanted(
    orders: Sequence[DraftOrder], grown: Sequence[Grown | Missing], go_on: ContinueDrafting
) -> list[Draft | Missing | NoRoom]:
    """Answers each order with as many levels of its tree as `go_on` asks for."""
    if go_on is to_ordered_depth:
        return [
            one if isinstance(one, Missing) else _answer(order, one, len(one.level_ends))
            for order, one in zip(orders, grown, strict=True)
        ]
    drafting = [
        (place, one) for place, one in enumerate(grown) if isinstance(one, Grown) and one.level_ends
    ]
    levels = [0] * len(grown)
    for depth in count():
        drafting = [(place, one) for place, one in drafting if len(one.level_ends) > depth]
        if not drafting:
            break
        step = DraftStep(
            depth,
            [orders[place].prefix.request for place, _ in drafting],
            [_frontier(one, depth) for _, one in drafting],
        )
        drafting = [one for one, more in zip(drafting, go_on(step), strict=True) if more]
        for place, _ in drafting:
            levels[place] = depth + 1
    return [
        one if isinstance(one, Missing) else _answer(order, one, wanted)
        for order, one, wanted in zip(orders, grown, levels, strict=True)
    ]


def _frontier(grown: Grown, depth: int) -> np.ndarray:
    """Path confidences of the deepest level; the root, which is no node, has none."""
    if depth == 0:
        return _NO_NODES
    start = grown.level_ends[depth - 2] if depth > 1 else 0
    return grown.path_confidence[start : grown.level_ends[depth - 1]]


def _answer(order: DraftOrder, grown: Grown, levels: int) -> Draft:
    tree = grown.tree
    if levels < len(grown.level_ends):
        end = grown.level_ends[levels - 1] if levels else 0
        tree = DraftTree(
            tree.tokens[:end], tree.parents[:end], tree.depth[:end], tree.confidence[:end]
        )
    prefix = order.prefix
    return Draft(prefix.request, prefix.attempt, prefix.round, tree)
