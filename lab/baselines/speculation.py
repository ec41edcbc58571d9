"""A confidence threshold, and the static trees and equal shares that papers compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from policies.protocols import Candidates, DraftPlan, LaneBatch, Mask, RoundContext
from policies.speculation.adaserve import TreeShape
from policies.speculation.fixed import Fixed, FixedParams
from policies.speculation.forest import (
    Forest,
    Ints,
    budgeted_draft_room,
    draft_limits,
    draft_room,
    forest_of,
)


@dataclass(frozen=True, slots=True)
class ThresholdParams:
    confidence: float = 0.4
    """A batch stops drafting after the first step in which no request has a token above it. The
    default is transformers'."""
    max_length: int = 8
    """The longest draft, as of the baseline in SpecServe, section 7.4."""


@dataclass(slots=True)
class ThresholdRule:
    """A batch drafts on while the confidence of any request's last token is at the threshold or
    above, as in engines that step all requests alike (SpecServe, section 2.4)."""

    confidence: float
    path: dict[str, float] = field(default_factory=dict)
    """The path confidence of each request up to its last level but one: divided by it, the path
    confidence that the rule gets is that of the last token."""

    def __call__(
        self, depth: int, requests: Sequence[str], frontier: Sequence[NDArray[np.float32]]
    ) -> Sequence[bool]:
        if depth == 0:
            self.path = dict.fromkeys(requests, 1.0)
            return [True] * len(requests)
        confident = [
            self._confident(request, level)
            for request, level in zip(requests, frontier, strict=True)
        ]
        return [any(confident) and len(level) > 0 for level in frontier]

    def _confident(self, request: str, level: NDArray[np.float32]) -> bool:
        if not len(level):
            return False
        before, path = self.path[request], float(level[0])
        self.path[request] = path
        return path >= self.confidence * before


class Threshold(Fixed):
    """Dynamic lengths as in transformers' assisted generation."""

    def __init__(self, params: ThresholdParams | None = None) -> None:
        self._threshold = params or ThresholdParams()
        super().__init__(FixedParams(self._threshold.max_length))

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        plans = super().plan(batches, context, now)
        return [DraftPlan(one.limits, ThresholdRule(self._threshold.confidence)) for one in plans]


@dataclass(frozen=True, slots=True)
class SpecInferParams:
    width: int = 3
    """Width 1, a chain, is SpecInfer* in SpecServe's evaluation."""
    depth: int = 8
    nodes: int = 23
    """AdaServe, section 6.2: each tree has 23 tokens. The paper does not say which; these are the
    best by path confidence of a beam of `width` and `depth`."""


class SpecInfer:
    """Ignores budgets. Where one forward cannot take all trees, shallow nodes come first."""

    def __init__(self, params: SpecInferParams | None = None) -> None:
        self._params = params or SpecInferParams()

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        depth, width = self._params.depth, self._params.width
        return [DraftPlan(draft_limits(batch, depth, width)) for batch in batches]

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        forest = forest_of(candidates.trees)
        kept = best_of_each(forest, self._params.nodes)
        by_level = kept[np.argsort(forest.depth[kept], kind="stable")]
        return forest.mask(by_level[: draft_room(len(candidates), context)])


def best_of_each(forest: Forest, nodes: int) -> Ints:
    """The best `nodes` of each tree by path confidence, in the order of the forest."""
    by_tree = np.lexsort((-forest.path, forest.owner))
    place = np.arange(forest.nodes) - forest.starts[forest.owner]
    return np.sort(by_tree[place < nodes])


@dataclass(frozen=True, slots=True)
class EqualParams:
    shape: TreeShape = field(default_factory=TreeShape)


class Equal:
    """Splits the budget evenly over all requests, whatever their SLOs; each takes its nodes of the
    highest path confidence."""

    def __init__(self, params: EqualParams | None = None) -> None:
        self._params = params or EqualParams()

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        return self._params.shape.plans(batches, context)

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        forest = forest_of(candidates.trees)
        each = budgeted_draft_room(len(candidates), context) // max(1, len(candidates))
        return forest.mask(best_of_each(forest, each))
