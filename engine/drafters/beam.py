"""Growing draft trees level by level from evidence in text, for drafters without a model.

What a place in the text is and what followed it is the drafter's own (`Continue`); the beam, the
policy that may stop it and the tree's arrays are the same for all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.protocol import (
    ContinueDrafting,
    Draft,
    DraftOrder,
    DraftStep,
    Missing,
    NoRoom,
)
from policies.tree import ROOT, DraftTree

DOUBT = 2.0
"""How much a short match is doubted, see `evidence_confidence`."""

Place = TypeVar("Place")


def evidence_confidence(agree: int, total: int, match_length: int) -> float:
    """Belief in a token that followed `agree` of `total` earlier matches of `match_length` tokens.

    A relative frequency with DOUBT / match_length imaginary matches that disagree: a single match
    of 2 tokens earns 0.5, one of 8 tokens 0.8. Siblings sum to less than 1.
    """
    return agree / (total + DOUBT / match_length)


class Branch(NamedTuple, Generic[Place]):
    """One continuation of a place."""

    token: int
    confidence: float
    place: Place


Continue = Callable[[Place, int], Sequence[Branch[Place]]]
"""(place, width) → its `width` likeliest branches."""


class _Tip(NamedTuple, Generic[Place]):
    node: int
    path_confidence: float
    place: Place


@dataclass(slots=True)
class _Growing(Generic[Place]):
    order: DraftOrder
    frontier: list[_Tip[Place]]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    def add_level(self, depth: int, continuations: Continue[Place]) -> None:
        """The `width` best children of the frontier by path confidence form the next level."""
        children = [
            (tip.path_confidence * branch.confidence, tip.node, branch)
            for tip in self.frontier
            for branch in continuations(tip.place, self.order.width)
        ]
        # A stable sort: among equals the drafter's own order of preference stands.
        children.sort(key=lambda child: -child[0])
        self.frontier = []
        for path_confidence, parent, branch in children[: self.order.width]:
            self.frontier.append(_Tip(len(self.tokens), path_confidence, branch.place))
            self.tokens.append(branch.token)
            self.parents.append(parent)
            self.depth.append(depth)
            self.confidence.append(branch.confidence)

    def tree(self) -> DraftTree:
        return DraftTree(
            np.array(self.tokens, np.int32),
            np.array(self.parents, np.int32),
            np.array(self.depth, np.int32),
            np.array(self.confidence, np.float32),
        )


def draft_from_places(
    orders: Sequence[DraftOrder],
    starts: Sequence[Place | Missing | None],
    continuations: Continue[Place],
    go_on: ContinueDrafting,
) -> list[Draft | Missing | NoRoom]:
    """Answers each order with the tree below its start; None proposes nothing."""
    growing = [
        _Growing(order, [] if start is None else [_Tip(ROOT, 1.0, start)])
        for order, start in zip(orders, starts, strict=True)
        if not isinstance(start, Missing)
    ]
    for depth in count():
        drafting = [one for one in growing if one.frontier and one.order.depth > depth]
        if not drafting:
            break
        step = DraftStep(
            depth,
            [one.order.prefix.request for one in drafting],
            [_path_confidences(one.frontier) for one in drafting],
        )
        for one, more in zip(drafting, go_on(step), strict=True):
            if more:
                one.add_level(depth + 1, continuations)
            else:
                one.frontier = []
    trees = iter(growing)
    return [start if isinstance(start, Missing) else _answer(next(trees)) for start in starts]


def _path_confidences(frontier: Sequence[_Tip[Place]]) -> NDArray[np.float32]:
    """Of the deepest level; the root, which is no node, has none."""
    return np.array([t.path_confidence for t in frontier if t.node != ROOT], np.float32)


def _answer(grown: _Growing[Place]) -> Draft:
    prefix = grown.order.prefix
    return Draft(prefix.request, prefix.attempt, prefix.round, grown.tree())
