"""Our default speculation policy: one plan for the whole round, fair to every request.

Precedence: what a forward takes; needs of SLO requests, the greatest A(r) first; SLO caps; no-harm
caps; the objective. `plan` decides for all lanes who drafts and how wide (draft_depths.py),
`PlannerStepRule` how deep while drafting goes on, `select` what is verified of it. All three are
the same search: the best prefix of what a round may take on (best_prefix.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.estimates.acceptance import AcceptanceEstimates
from policies.estimates.calibration import Calibration
from policies.protocols import Candidates, DraftLimit, DraftPlan, LaneBatch, Mask, RoundContext
from policies.request import RequestView, RoundOutcome
from policies.rows import Rows, with_rows
from policies.speculation.forest import Ints, draft_room
from policies.speculation.planner.confidence_scale import ConfidenceScale
from policies.speculation.planner.exploration import Exploration
from policies.speculation.planner.lane_backoff import LaneBackoff
from policies.speculation.planner.no_harm import NoHarmAccounts
from policies.speculation.planner.objective import Objective
from policies.speculation.planner.plan import (
    Aims,
    LaneInputs,
    Plan,
    lane_inputs,
    plan_round,
    rules_of,
)
from policies.speculation.planner.round_inputs import RoundCosts
from policies.speculation.planner.select import Round, select_round
from policies.speculation.planner.step_rule import PlannerStepRule
from policies.speculation.slo import BatchProgress, request_terms

_ROUND_MEMORY = 0.2
"""Weight of the last round in the usual round's time."""


@dataclass(frozen=True, slots=True)
class PlannerParams:
    objective: Objective = "fair"
    """fair: the weighted geometric mean of the requests' speeds, within no-harm caps. throughput:
    their arithmetic mean, without such caps."""
    max_depth: int = 8
    max_width: int = 3
    """Where the verifier takes trees."""
    no_harm: float = 0.97
    """The share of its speed under plain decoding that a request without an SLO keeps at least."""
    window: int = 128
    """Rounds whose loss, of 1 - `no_harm` each, a request may have at once."""
    explore: float = 0.003
    """Share of the time for drafts that are not expected to pay, over all lanes."""


class Planner:
    """`calibrations` by lane: what the confidences seen in the drafter's loop are worth. Those of
    candidates are calibrated already."""

    def __init__(
        self,
        params: PlannerParams | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        self._params = params or PlannerParams()
        self._fair = self._params.objective == "fair"
        self._calibrations = calibrations or {}
        self._acceptance = AcceptanceEstimates()
        self._no_harm = NoHarmAccounts(self._params.no_harm, self._params.window)
        self._scale = ConfidenceScale()
        self._backoff = LaneBackoff()
        self._exploration = Exploration(self._params.explore)
        self._rows = Rows()
        self._terms = request_terms([])
        """By row."""
        self._asked: dict[str, set[int]] = {}
        """By lane: rows of requests that were to be drafted for and have no proposal yet."""
        self._round_s = 0.0
        """A running mean of the time between two verdicts of a request."""

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        drafting = [batch for batch in batches if self._backoff.considers(batch, self._rows)]
        if not drafting:
            return [DraftPlan.plain(batch) for batch in batches]
        by_name = {one.name: one for batch in batches for one in batch.requests}
        names, requests = tuple(by_name), list(by_name.values())
        rows = self._rows_of(requests)
        lane_names = [batch.lane or "" for batch in drafting]
        places = {name: place for place, name in enumerate(names)}
        numbers = self._acceptance.numbers(lane_names)
        lanes = lane_inputs(drafting, places, context, numbers, self._calibrations)
        costs = RoundCosts(
            verify=context.verify.piecewise,
            context=0.0,
            base_tokens=float(len(requests) + context.prefill_tokens),
            wait_s=context.waiting_s,
            overhead_s=context.handling_s,
            elsewhere_s=0.0,
            room=draft_room(len(requests), context),
        )
        plan = plan_round(
            rows,
            BatchProgress.of(requests, self._terms[rows]),
            lanes,
            self._acceptance.tables,
            self._scale.promises,
            self._no_harm.accounts,
            costs,
            Aims(
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
            depth = self._depths(lane, name, lanes, plan, rows, rule)
            if any(depth):
                self._backoff.bring_back(name)
                own = rows[lanes.request[lanes.pairs(lane)]].tolist()
                drafts = [row for row, levels in zip(own, depth, strict=True) if levels]
                self._asked.setdefault(name, set()).update(drafts)
                # Where levels cost nothing to draft, `select` is soon enough to weigh them.
                plans[name] = _draft_plan(
                    depth, rule if name in context.draft else None, rule.width
                )
        for name, blocked in zip(lane_names, plan.blocked.tolist(), strict=True):
            if name not in plans and not blocked:
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
        rows: Ints,
        rule: PlannerStepRule,
    ) -> list[int]:
        """Depth bounds of the lane's requests: as deep as there is room for where the rule decides
        on the way, for those that draft or explore."""
        pairs = lanes.pairs(lane)
        drafts, deepest = plan.depths.depth[pairs] > 0, plan.deepest[pairs]
        self._exploration.save(name, plan.plain_s, self._backoff.rounds(name))
        idle = np.flatnonzero(~drafts & (deepest > 0))
        if len(idle):
            places = lanes.request[pairs]
            evidence = self._acceptance.evidence(rows[places[idle]], name)
            least_known = idle[np.argsort(evidence, kind="stable")]
            costs_s = rule.exploration_s(places[drafts], places[least_known])
            drafts = drafts.copy()
            drafts[least_known[: self._exploration.afford(name, *costs_s)]] = True
        return (deepest * drafts).tolist()

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        requests, asked = candidates.requests, self._asked
        if not requests:
            return np.zeros(0, np.bool_)
        rows = self._rows_of(requests)
        for row, proposers in zip(rows.tolist(), candidates.lanes, strict=True):
            for lane in proposers:
                if lane in asked:
                    asked[lane].discard(row)
        selected = select_round(
            self._fair,
            rows,
            BatchProgress.of(requests, self._terms[rows]),
            candidates.trees,
            self._acceptance.proposals(candidates, context.draft.keys()),
            self._acceptance.tables,
            self._scale.promises,
            self._no_harm.accounts,
            Round(
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
            self._note_missing_drafts(rows)
            self._scale.observe(rows, np.array([float(one.accepted) for one in known]))
            self._no_harm.close_round(
                rows,
                np.array([one.seconds for one in known]),
                np.array([one.verify_s for one in known]),
                np.array([one.prompts_s for one in known]),
                max(one.draft_s for one in outcomes),
            )

    def observe_read(
        self, request: str, lane: str, matched: Sequence[bool], covered: Sequence[bool]
    ) -> None:
        row = self._rows.get(request)
        if row is not None:
            self._acceptance.read(row, lane, np.array(matched), np.array(covered))

    def forget(self, request: str) -> None:
        row = self._rows.drop(request)
        if row is not None:
            self._acceptance.forget(row)
            self._no_harm.forget(row)
            self._scale.forget(row)
            for asked in self._asked.values():
                asked.discard(row)

    def _note_missing_drafts(self, rows: Ints) -> None:
        """A lookup that was to draft and found nothing has missed its first level."""
        here = set(rows.tolist())
        for lane, asked in self._asked.items():
            missing = asked & here
            if missing:
                asked -= missing
                self._acceptance.miss(np.array(sorted(missing), np.int64), lane)

    def _rows_of(self, requests: Sequence[RequestView]) -> Ints:
        names = [request.name for request in requests]
        known = self._rows.known(names)
        if known is not None:
            return known
        rows = self._rows.of(names)
        self._acceptance.reserve(len(self._rows))
        self._no_harm.reserve(len(self._rows))
        self._scale.reserve(len(self._rows))
        self._terms = with_rows(self._terms, len(self._rows))
        self._terms[rows] = request_terms(requests)
        return rows


def _draft_plan(depths: Sequence[int], rule: PlannerStepRule | None, width: int) -> DraftPlan:
    limit = {depth: DraftLimit(depth, width) for depth in set(depths)}
    return DraftPlan([limit[depth] for depth in depths], rule)
