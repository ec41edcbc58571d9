"""No speculation, and a fixed draft length."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.protocols import Candidates, DraftPlan, LaneBatch, Mask, RoundContext
from policies.ranges import DRAFT_DEPTH, require
from policies.speculation.forest import draft_limits, draft_room, forest_of


def all_that_fit(candidates: Candidates, context: RoundContext) -> Mask:
    """All drafted nodes; if one forward cannot take them all, the shallow ones first."""
    room, nodes = draft_room(len(candidates), context), len(candidates.trees.tokens)
    if nodes <= room:
        return np.ones(nodes, np.bool_)
    forest = forest_of(candidates.trees)
    return forest.mask(forest.shallow_first()[:room])


class Off:
    """Plain decoding."""

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        return [DraftPlan.plain(batch) for batch in batches]

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        return np.zeros(len(candidates.trees.tokens), np.bool_)


@dataclass(frozen=True, slots=True)
class FixedParams:
    length: int = 4
    """Draft tokens per request and round (SpecServe and AdaServe compare with 1, 3 and 5)."""

    def __post_init__(self) -> None:
        require(DRAFT_DEPTH, length=self.length)


class Fixed:
    """Vanilla speculative decoding: chains of the same length for all requests."""

    def __init__(self, params: FixedParams | None = None) -> None:
        self._params = params or FixedParams()

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        return [DraftPlan(draft_limits(batch, self._params.length)) for batch in batches]

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        return all_that_fit(candidates, context)
