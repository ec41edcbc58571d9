"""Equal scheduling: AdaServe's ablation baseline (section 6.3, Fig. 16)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.protocols import Candidates, DraftPlan, LaneBatch, Mask, RoundContext
from policies.speculation.adaserve import TreeShape
from policies.speculation.forest import budgeted_draft_room, forest_of
from policies.speculation.specinfer import best_of_each


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
