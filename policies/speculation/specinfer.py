"""SpecInfer as the papers' baseline: one static tree shape for all requests under any load."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.protocols import Candidates, DraftLimit, DraftPlan, LaneBatch, Mask, RoundContext
from policies.speculation.forest import Forest, Ints, draft_room, draft_tokens_left, forest_of


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
        return [
            DraftPlan(
                [DraftLimit(min(depth, draft_tokens_left(one)), width) for one in batch.requests]
            )
            for batch in batches
        ]

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
