"""The default speculation policy: one plan for the whole round, fair to every request.

Precedence: the capacity of a forward; needs of SLO requests, the greatest A(r) first; SLO caps;
no-harm caps; the objective. `plan` decides for all lanes which requests draft and how wide
(draft_depths.py), `PlannerStepRule` how deep, level by level, and `select` which nodes are
verified. All three use the same search over what can be added to a round (best_prefix.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.estimates.calibration import Calibration
from policies.protocols import Candidates, DraftLimit, DraftPlan, LaneBatch, Mask, RoundContext
from policies.request import RequestView, RoundOutcome
from policies.rows import Rows, with_rows
from policies.speculation.forest import Floats, Ints, context_tokens, draft_room
from policies.speculation.planner.confidence_scale import ConfidenceScale
from policies.speculation.planner.exploration import Exploration
from policies.speculation.planner.lane_backoff import LaneBackoff
from policies.speculation.planner.no_harm import NoHarmAccounts
from policies.speculation.planner.objective import Objective
from policies.speculation.planner.plan import (
    LaneInputs,
    Plan,
    PlanSettings,
    lane_inputs,
    plan_round,
    rules_of,
)
from policies.speculation.planner.round_inputs import RoundCosts
from policies.speculation.planner.select import RoundState, select_round
from policies.speculation.planner.step_rule import PlannerStepRule
from policies.speculation.slo import BatchProgress, request_terms

_ROUND_MEMORY = 0.2
"""Weight of the last round in the running mean of a round's time."""


@dataclass(frozen=True, slots=True)
class PlannerParams:
    objective: Objective = "fair"
    """fair: the weighted geometric mean of the requests' speeds, with no-harm caps. throughput:
    their arithmetic mean, without these caps."""
    max_depth: int = 8
    max_width: int = 3
    """Maximum width of draft trees, if the verifier takes trees."""
    no_harm: float = 0.97
    """The share of its speed under plain decoding that a request without an SLO keeps at least."""
    window: int = 128
    """A request may fall behind at once by the loss of this many rounds, 1 - `no_harm` each."""
    explore: float = 0.003
    """Share of the time for exploration (drafts that are not expected to pay), over all lanes."""


class Planner:
    """`calibrations`: of each lane, for the raw confidences in its step rule. Those of `Candidates`
    are calibrated already."""

    def __init__(
        self,
        params: PlannerParams | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        self._params = params or PlannerParams()
        self._fair = self._params.objective == "fair"
        self._calibrations = calibrations or {}
        self._no_harm = NoHarmAccounts(self._params.no_harm, self._params.window)
        self._scale = ConfidenceScale()
        self._backoff = LaneBackoff()
        self._exploration = Exploration(self._params.explore)
        self._rows = Rows()
        self._terms = request_terms([])
        """`request_terms` of each request, by row."""
        self._round_s = 0.0
        """Running mean of the time between two verdicts of a request."""

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        drafting = [batch for batch in batches if self._backoff.considers(batch)]
        if not drafting:
            return [DraftPlan.plain(batch) for batch in batches]
        by_name = {one.name: one for batch in batches for one in batch.requests}
        names, requests = tuple(by_name), list(by_name.values())
        rows = self._rows_of(requests)
        lane_names = [batch.lane or "" for batch in drafting]
        places = {name: place for place, name in enumerate(names)}
        lanes = lane_inputs(drafting, places, context, self._calibrations)
        known = context.acceptance.rows(names)
        costs = RoundCosts(
            verify=context.verify.piecewise,
            context=float(context_tokens(requests)),
            base_tokens=float(len(requests) + context.prefill_tokens),
            wait_s=context.waiting_s,
            overhead_s=context.handling_s,
            other_lanes_s=0.0,
            room=draft_room(len(requests), context),
        )
        plan = plan_round(
            rows,
            BatchProgress.of(requests, self._terms[rows]),
            lanes,
            context.acceptance.tables,
            known,
            self._scale.tables,
            self._no_harm.accounts,
            costs,
            PlanSettings(
                self._fair,
                self._params.max_depth,
                self._params.max_width if context.trees else 1,
                now,
                self._round_s,
            ),
        )
        rules = rules_of(plan, self._fair, lane_names, names, context, costs, self._calibrations)
        plans: dict[str | None, DraftPlan] = {}
        for lane, (name, rule) in enumerate(zip(lane_names, rules, strict=True)):
            drafts = context.acceptance.drafts(known, lanes.numbers[lane : lane + 1])[:, 0]
            depth = self._depths(lane, name, lanes, plan, drafts, rule)
            if any(depth):
                self._backoff.bring_back(name)
                # Lookups draft at no cost, so they need no step rule: `select` decides.
                plans[name] = _draft_plan(
                    depth, rule if name in context.draft else None, rule.width
                )
            else:
                self._backoff.leave_out(name)
        if plans:
            self._no_harm.open_round(rows, 0.0, 0.0, context.waiting_s, context.handling_s)
        return [plans.get(batch.lane) or DraftPlan.plain(batch) for batch in batches]

    def _depths(
        self,
        lane: int,
        name: str,
        lanes: LaneInputs,
        plan: Plan,
        evidence: Floats,
        rule: PlannerStepRule,
    ) -> list[int]:
        """Depth limits of the lane's requests: for those that draft or explore the largest possible
        depth, because the step rule decides while drafting; 0 for the others. `evidence`: the
        drafts that each request of the round has had from the lane."""
        pairs = lanes.pairs(lane)
        drafts, deepest = plan.depths.depth[pairs] > 0, plan.deepest[pairs]
        self._exploration.add_budget(name, plan.plain_s, self._backoff.rounds(name))
        idle = np.flatnonzero(~drafts & (deepest > 0))
        if len(idle):
            places = lanes.request[pairs]
            least_known = idle[np.argsort(evidence[places[idle]], kind="stable")]
            costs_s = rule.exploration_s(places[drafts], places[least_known])
            drafts = drafts.copy()
            drafts[least_known[: self._exploration.spend(name, *costs_s)]] = True
        return (deepest * drafts).tolist()

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        requests = candidates.requests
        if not requests:
            return np.zeros(0, np.bool_)
        rows = self._rows_of(requests)
        selected = select_round(
            self._fair,
            rows,
            BatchProgress.of(requests, self._terms[rows]),
            candidates.trees,
            self._scale.tables,
            self._no_harm.accounts,
            RoundState(
                context.verify.piecewise,
                context.prefill_tokens,
                draft_room(len(requests), context),
                now,
                max(candidates.drafting_s) + context.handling_s,
                context.waiting_s,
            ),
        )
        self._no_harm.open_round(
            rows, selected.gain, selected.drafts_share, context.waiting_s, context.handling_s
        )
        self._round_s += _ROUND_MEMORY * (selected.seconds - self._round_s)
        return selected.kept

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        places = [self._rows.get(one.request) for one in outcomes]
        known = [one for one, row in zip(outcomes, places, strict=True) if row is not None]
        if known:
            rows = np.array([row for row in places if row is not None], np.int64)
            self._scale.observe(rows, np.array([float(one.accepted) for one in known]))
            self._no_harm.close_round(
                rows,
                np.array([one.verify_s for one in known]),
                np.array([one.prompts_s for one in known]),
                max(one.draft_s for one in outcomes),
            )

    def forget(self, request: str) -> None:
        row = self._rows.drop(request)
        if row is not None:
            self._no_harm.forget(row)
            self._scale.forget(row)

    def _rows_of(self, requests: Sequence[RequestView]) -> Ints:
        names = [request.name for request in requests]
        known = self._rows.known(names)
        if known is not None:
            return known
        rows = self._rows.of(names)
        self._no_harm.reserve(len(self._rows))
        self._scale.reserve(len(self._rows))
        self._terms = with_rows(self._terms, len(self._rows))
        self._terms[rows] = request_terms(requests)
        return rows


def _draft_plan(depths: Sequence[int], rule: PlannerStepRule | None, width: int) -> DraftPlan:
    limit = {depth: DraftLimit(depth, width) for depth in set(depths)}
    return DraftPlan([limit[depth] for depth in depths], rule)
