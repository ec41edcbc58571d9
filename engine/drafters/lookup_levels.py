"""Applies the speculation policy to lookup trees level by level.

A lookup grows its whole tree in one call, as that costs next to nothing. The policy then decides
level by level, as for a model drafter, how much of each tree is kept.
"""

from collections.abc import Sequence
from itertools import count

import numpy as np

from engine.drafters.lookup_tree import LookupTree
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


def prune_by_levels(
    orders: Sequence[DraftOrder],
    grown: Sequence[LookupTree | Missing],
    continue_drafting: ContinueDrafting,
) -> list[Draft | Missing | NoRoom]:
    """Answers each order with as many levels of its tree as `continue_drafting` allows."""
    if continue_drafting is to_ordered_depth:
        return [
            one if isinstance(one, Missing) else _draft(order, one, len(one.level_ends))
            for order, one in zip(orders, grown, strict=True)
        ]
    drafting = [
        (index, one)
        for index, one in enumerate(grown)
        if isinstance(one, LookupTree) and one.level_ends
    ]
    kept_levels = [0] * len(grown)
    for depth in count():
        drafting = [(index, one) for index, one in drafting if len(one.level_ends) > depth]
        if not drafting:
            break
        step = DraftStep(
            depth,
            [orders[index].prefix.request for index, _ in drafting],
            [_frontier(one, depth) for _, one in drafting],
        )
        drafting = [
            one for one, more in zip(drafting, continue_drafting(step), strict=True) if more
        ]
        for index, _ in drafting:
            kept_levels[index] = depth + 1
    return [
        one if isinstance(one, Missing) else _draft(order, one, levels)
        for order, one, levels in zip(orders, grown, kept_levels, strict=True)
    ]


def _frontier(grown: LookupTree, depth: int) -> np.ndarray:
    """Path confidences of the level at this depth; depth 0 is the root, which is no node."""
    if depth == 0:
        return _NO_NODES
    start = grown.level_ends[depth - 2] if depth > 1 else 0
    return grown.path_confidence[start : grown.level_ends[depth - 1]]


def _draft(order: DraftOrder, grown: LookupTree, levels: int) -> Draft:
    tree = grown.tree
    if levels < len(grown.level_ends):
        end = grown.level_ends[levels - 1] if levels else 0
        tree = DraftTree(
            tree.tokens[:end], tree.parents[:end], tree.depth[:end], tree.confidence[:end]
        )
    prefix = order.prefix
    return Draft(prefix.request, prefix.attempt, prefix.round, tree)
