"""Equal scheduling: AdaServe's ablation baseline (section 6.3, Fig. 16)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.protocols import Ask, Candidates, DraftPlan, Mask, RoundContext
from policies.speculation.adaserve import TreeShape
from policies.speculation.forest import budgeted_room, forest_of
from policies.speculation.specinfer import best_of_each
from policies.speculation.stateless import Stateless


@dataclass(frozen=True, slots=True)
class EqualParams:
    shape: TreeShape = field(default_factory=TreeShape)


class Equal(Stateless):
    """The budget evenly over the requests, SLO or not; each tree greedily by path confidence."""

    def __init__(self, params: EqualParams | None = None) -> None:
        self._params = params or EqualParams()

    def plan(self, asks: Sequence[Ask], context: RoundContext, now: float) -> list[DraftPlan]:
        return [DraftPlan(self._params.shape.limits(ask.batch, context)) for ask in asks]

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        forest = forest_of(candidates.trees)
        each = budgeted_room(len(candidates), context) // max(1, len(candidates))
        return forest.mask(best_of_each(forest, each))
