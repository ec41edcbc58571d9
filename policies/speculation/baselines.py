"""The baselines: no speculation, a fixed length, and a confidence threshold."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from policies.protocols import Candidates, DraftLimit, DraftPlan, LaneBatch, Mask, RoundContext
from policies.speculation.forest import draft_room, draft_tokens_left, forest_of
from policies.speculation.stateless import Stateless


def keep_what_fits(candidates: Candidates, context: RoundContext) -> Mask:
    """Everything that was drafted; where that is too much, shallow nodes go first."""
    space, nodes = draft_room(len(candidates), context), len(candidates.trees.tokens)
    if nodes <= space:
        return np.ones(nodes, np.bool_)
    forest = forest_of(candidates.trees)
    return forest.mask(forest.shallow_first()[:space])


class Off(Stateless):
    """Decodes plainly."""

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


class Fixed(Stateless):
    """Vanilla speculative decoding: a chain of one length for everyone."""

    def __init__(self, params: FixedParams | None = None) -> None:
        self._params = params or FixedParams()

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        length = self._params.length
        return [
            DraftPlan(
                [DraftLimit(min(length, draft_tokens_left(request))) for request in batch.requests]
            )
            for batch in batches
        ]

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        return keep_what_fits(candidates, context)


@dataclass(frozen=True, slots=True)
class ThresholdParams:
    confidence: float = 0.4
    """A request stops drafting behind the first token below it (transformers' default)."""
    max_length: int = 8
    """SpecServe, section 7.4: the baseline's longest draft."""


@dataclass(slots=True)
class ThresholdRule:
    """Each request drafts on while its last token was confident enough."""

    confidence: float
    path: dict[str, float] = field(default_factory=dict)
    """Of each request, up to the level before: path confidences are what the loop shows."""

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        if depth == 0:
            self.path = dict.fromkeys(requests, 1.0)
            return [True] * len(requests)
        return [
            self._confident(request, level)
            for request, level in zip(requests, frontier, strict=True)
        ]

    def _confident(self, request: str, level: NDArray[np.float32]) -> bool:
        if not len(level):
            return False
        before, path = self.path[request], float(level[0])
        self.path[request] = path
        return path >= self.confidence * before


class Threshold(Stateless):
    """Dynamic lengths as in transformers' assisted generation."""

    def __init__(self, params: ThresholdParams | None = None) -> None:
        self._params = params or ThresholdParams()

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        length = self._params.max_length
        limits = [
            [DraftLimit(min(length, draft_tokens_left(request))) for request in batch.requests]
            for batch in batches
        ]
        return [DraftPlan(each, ThresholdRule(self._params.confidence)) for each in limits]

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        return keep_what_fits(candidates, context)
