"""AdaServe: first the nodes that each request's SLO requires, then the best ones up to the budget.

The depth and width of the beam search are eq. 8 and 9. Selection is Algorithm 2: an SLO-customised
step, then a throughput-optimised one, within the verifier's token budget B₁.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from policies.protocols import Candidates, DraftLimit, DraftPlan, LaneBatch, Mask, RoundContext
from policies.ranges import COUNT, DRAFT_DEPTH, DRAFT_WIDTH, require
from policies.speculation.forest import (
    Floats,
    Forest,
    Ints,
    budgeted_draft_room,
    context_tokens,
    draft_limits,
    forest_of,
)
from policies.speculation.slo import BatchProgress, needs_at


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The depth and width of candidate trees under load (eq. 8 and 9)."""

    min_depth: int = 1
    max_depth: int = 8
    max_width: int = 4
    c1: int = 0
    c2: int = 0
    """The paper tunes c₁ and c₂ by grid search and gives no values."""

    def __post_init__(self) -> None:
        require(DRAFT_DEPTH, min_depth=self.min_depth, max_depth=self.max_depth)
        require(DRAFT_WIDTH, max_width=self.max_width)

    def plans(self, batches: Sequence[LaneBatch], context: RoundContext) -> list[DraftPlan]:
        """Alike for all lanes but for their own budgets B₂: n counts all active requests, which
        share B₁ whatever lanes they are on."""
        planned = {request.name for batch in batches for request in batch.requests}
        active = max(context.active, len(planned))
        return [DraftPlan(self._limits(batch, active, context)) for batch in batches]

    def _limits(self, batch: LaneBatch, active: int, context: RoundContext) -> list[DraftLimit]:
        depth = context.verify_budget // max(1, active + self.c1) - 1
        depth = min(self.max_depth, max(self.min_depth, depth))
        budget = context.draft_budgets.get(batch.lane or "", context.most_tokens)
        width = min(self.max_width, max(1, budget // max(1, active) + self.c2))
        return draft_limits(batch, depth, width)


@dataclass(frozen=True, slots=True)
class AdaServeParams:
    shape: TreeShape = field(default_factory=TreeShape)
    most_for_slo: int = 8
    """n_max: the most draft tokens of a request in the SLO step. The paper gives no value."""
    throughput_step: bool = True
    """Off: SLO-customised selection alone, as in the second bar of AdaServe's Fig. 16."""

    def __post_init__(self) -> None:
        require(COUNT, most_for_slo=self.most_for_slo)


class AdaServe:
    def __init__(self, params: AdaServeParams | None = None) -> None:
        self._params = params or AdaServeParams()

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        return self._params.shape.plans(batches, context)

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        forest = forest_of(candidates.trees)
        budget = budgeted_draft_room(len(candidates), context)
        needs = self._needs(candidates, forest, context, now, min(budget, forest.nodes))
        for_slo = slo_customized(forest, needs, self._params.most_for_slo, budget)
        if not self._params.throughput_step:
            return forest.mask(for_slo)
        rest = forest.best_first()
        rest = rest[~np.isin(rest, for_slo)]
        return forest.mask(np.concatenate([for_slo, rest[: budget - len(for_slo)]]))

    def _needs(
        self,
        candidates: Candidates,
        forest: Forest,
        context: RoundContext,
        now: float,
        drafts: int,
    ) -> Floats:
        """A(r), with the next verdict after this verification and the usual waits."""
        requests = candidates.requests
        tokens = len(requests) + drafts + context.prefill_tokens
        verdict_s = now + context.waiting_s
        verdict_s += context.verify.predict(context_tokens(requests), tokens)
        return needs_at(BatchProgress.of(requests), verdict_s)


def slo_customized(forest: Forest, needs: Floats, most: int, budget: int) -> Ints:
    """Step 2 of Algorithm 2: requests by descending A(r) take their best nodes until 1 + Σ f
    reaches A_cap = min(A, d + 1), at most `most` each and `budget` in all."""
    by_tree = np.lexsort((-forest.path, forest.owner))
    gains = np.cumsum(forest.path[by_tree])
    kept: list[Ints] = []
    for request in np.argsort(-needs, kind="stable").tolist():
        first, end = int(forest.starts[request]), int(forest.starts[request + 1])
        size = end - first
        if needs[request] <= 1.0 or budget <= 0:
            break
        if not size:
            continue
        capped = min(float(needs[request]), float(forest.depth[first:end].max()) + 1.0)
        before = gains[first - 1] if first else 0.0
        wanted = int(np.searchsorted(gains[first:end] - before, capped - 1.0)) + 1
        wanted = min(wanted, size, most, budget)
        kept.append(by_tree[first : first + wanted])
        budget -= wanted
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)
