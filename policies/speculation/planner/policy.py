"""Our default: one plan for the whole round, fair to every request (DESIGN 4.6).

Precedence: what a forward takes; needs of SLO requests, the greatest A(r) first; SLOs; no harm to
the others; then the objective, proportionally fair or throughput. `plan` decides for all lanes who
begins to draft and how wide (draft_depths.py), `PlannerStepRule` how deep while drafting goes on,
`select` what is verified of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from policies.cost import FREE
from policies.estimates.acceptance import AcceptanceEstimates
from policies.estimates.calibration import NO_RANK_COUNTS, Calibration
from policies.protocols import Candidates, DraftLimit, DraftPlan, LaneBatch, Mask, RoundContext
from policies.request import RequestView, RoundOutcome
from policies.rows import Rows, with_rows
from policies.speculation.forest import Floats, Ints, draft_room
from policies.speculation.planner.lane_backoff import LaneBackoff
from policies.speculation.planner.no_harm import NoHarmAccounts, Trust
from policies.speculation.planner.objective import Objective
from policies.speculation.planner.plan import WANTED, Aims, Asked, Thought, think
from policies.speculation.planner.plan_cache import CachedPlan, keys_of
from policies.speculation.planner.plan_lanes import Lanes, rules_of
from policies.speculation.planner.round_inputs import RoundCosts, call_rows
from policies.speculation.planner.select import Around, Wish, choose
from policies.speculation.planner.step_rule import PlannerStepRule
from policies.speculation.slo import BatchProgress, request_terms

_USUAL_STEP = 0.2
"""Weight of the last round in the usual one."""
_PRICED_EVERY = 8
"""Rounds: it takes as long as the plan itself."""


@dataclass(frozen=True, slots=True)
class PlannerParams:
    objective: Objective = "fair"
    """fair: the power mean of speeds, whose power and weights follow from how requests fare
    (no_harm.py). throughput: (n + Σ gain) / T, without no-harm."""
    max_depth: int = 8
    max_width: int = 3
    """Where the verifier takes trees."""
    most_for_need: int = 16
    """Draft tokens that one request may take for its SLO alone (AdaServe's n_max)."""
    no_harm: float = 0.97
    """What a request without an SLO keeps of its speed under plain decoding, at least."""
    window: int = 128
    """Rounds over which it does."""
    exceptions: float = 0.1
    """The share of requests that may end below `no_harm`, being short; a group of requests that is
    a third of all, and worse off than the others, then has it for two thirds of its own."""
    most_price: float = 0.08
    """The share of the throughput objective's tokens that fairness may cost, by what is expected as
    rounds begin (a good half of it comes true). Where it costs more, there will be
    more exceptions, and where that is not enough, no lines."""
    repay: float = 0.05
    """The part of a debt that one round must repay."""
    explore: float = 0.01
    """Share of the time that may go into drafts that are not expected to pay, on all lanes."""
    prior_acceptance: float = 0.6
    """Of a drafter that has not been seen."""
    prior_weight: float = 1.0
    """Levels for which a request's own record counts as much as its lane's."""


class Planner:
    """`calibrations` by lane: what the confidences seen in the drafter's loop are worth. Those
    of candidates are calibrated already."""

    def __init__(
        self,
        params: PlannerParams | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        self._params = params or PlannerParams()
        self._calibrations = calibrations or {}
        self._acceptance = AcceptanceEstimates(
            self._params.prior_acceptance, self._params.prior_weight
        )
        self._no_harm = NoHarmAccounts(
            self._params.no_harm,
            self._params.window,
            self._params.repay,
            self._params.exceptions,
            self._params.most_price,
        )
        self._trust = Trust()
        self._idle = LaneBackoff(self._params.explore, self._acceptance)
        self._rows = Rows()
        self._terms = request_terms([])
        """By row."""
        self._asked: dict[str, set[int]] = {}
        """By lane: rows of those who draft there in this round, and have proposed nothing yet."""
        self._usual_s = 0.0
        """A running mean of T: how long a request of the batch waits for its next verdict."""
        self._plans = 0
        self._kept: CachedPlan | None = None
        self.needs_over_harm = 0
        """Rounds in which a need was served at the price of a no-harm cap."""

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        objective = self._params.objective
        priced = objective == "fair" and self._plans % _PRICED_EVERY == 0
        self._plans += 1
        awake = [batch for batch in batches if self._idle.is_awake(batch, self._rows)]
        kept, self._kept = self._kept, None
        if kept is not None and not priced and kept.answers(batches, awake):
            self._kept = kept
            return self._once_more(kept, context)
        if not awake:
            if priced:
                self._no_harm.learn_price(0.0)
            return [DraftPlan.plain(batch) for batch in batches]
        by_name = {one.name: one for batch in batches for one in batch.requests}
        names, requests = tuple(by_name), list(by_name.values())
        places = dict(zip(names, range(len(names)), strict=True))
        rows = self._rows_of(requests)
        lanes = Lanes.of(awake, places, context)
        costs = RoundCosts(
            verify=context.verify.piecewise,
            draft=FREE,
            call_s=0.0,
            read=0.0,
            fixed=float(len(requests) + context.prefill_tokens),
            waiting_s=context.waiting_s,
            handling_s=context.handling_s,
            elsewhere_s=0.0,
            room=draft_room(len(requests), context),
            weights=0.0,
        )
        aims = Aims(
            objective == "fair",
            self._params.max_depth,
            self._params.max_width if context.trees else 1,
            now,
            self._usual_s,
            priced,
        )
        thought = think(
            rows,
            BatchProgress.of(requests, self._terms[rows]),
            self._asked_of(lanes),
            self._acceptance.tables,
            self._trust.trusted,
            self._no_harm.accounts,
            costs,
            aims,
        )
        if priced:
            self._no_harm.learn_price(thought.price)
        rules = rules_of(lanes, names, thought, costs, self._calibrations)
        depth, explored = self._depths(lanes, rows, thought, rules)
        row_of = rows[lanes.request].tolist()
        plans: dict[str | None, DraftPlan] = {}
        asked: dict[str, list[int]] = {}
        for lane, (name, rule) in enumerate(zip(lanes.names, rules, strict=True)):
            pairs = lanes.pairs(lane)
            if any(depth[pairs]):
                self._idle.wake(name)
                asked[name] = [*compress(row_of[pairs], depth[pairs])]
                # Where levels cost nothing to draft, `select` is soon enough to weigh them.
                followed = rule if name in context.draft else None
                plans[name] = _plan_of(depth[pairs], rule.width, followed)
            elif thought.lanes[WANTED, lane] == 0.0:
                # Else drafts pay there, but somebody may not be slowed down for them now.
                self._idle.rest(name)
        planned = [plans.get(batch.lane) or DraftPlan.plain(batch) for batch in batches]
        self._ask(asked, rows, context)
        lookups_only = asked.keys().isdisjoint(context.draft)
        if asked and lookups_only and not explored and self._at_ease(requests, rows):
            awake_lanes, plain_s = set(lanes.names), thought.plain_s
            self._kept = CachedPlan(keys_of(batches), planned, awake_lanes, rows, asked, plain_s)
        return planned

    def _depths(
        self, lanes: Lanes, rows: Ints, thought: Thought, rules: Sequence[PlannerStepRule]
    ) -> tuple[list[int], bool]:
        """Of each pair; and whether anybody drafts only to find out whether it pays."""
        deepest, explored = thought.deepest.copy(), False
        for lane, (name, rule) in enumerate(zip(lanes.names, rules, strict=True)):
            pairs = lanes.pairs(lane)
            self._idle.save(name, thought.plain_s)
            begins = thought.depth[pairs] > 0
            if np.count_nonzero(begins) < len(begins):
                at, able = lanes.request[pairs], deepest[pairs] > 0
                explorers = self._idle.explorers(name, at, rows, able, begins, rule)
                explored = explored or bool(explorers.any())
                deepest[pairs] *= begins | explorers
        return deepest.tolist(), explored

    def _at_ease(self, requests: Sequence[RequestView], rows: Ints) -> bool:
        """Nobody has needs that change with every round, or is near its no-harm line."""
        if any([one.slo.tpot_s is not None for one in requests]):
            return False
        return self._params.objective == "throughput" or self._no_harm.at_ease(rows)

    def _once_more(self, kept: CachedPlan, context: RoundContext) -> list[DraftPlan]:
        kept.left -= 1
        for lane in kept.awake:
            self._idle.save(lane, kept.plain_s)
        self._ask(kept.asked, kept.rows, context)
        return kept.plans

    def _ask(self, asked: Mapping[str, Sequence[int]], rows: Ints, context: RoundContext) -> None:
        """`asked`: by lane, the rows of those who draft there; `rows`: of everybody."""
        for lane, drafting in asked.items():
            self._asked.setdefault(lane, set()).update(drafting)
        if asked:
            self._no_harm.expect_nothing(rows, context.waiting_s, context.handling_s)

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        requests, asked = candidates.requests, self._asked
        if not requests:
            return np.zeros(0, np.bool_)
        rows = self._rows_of(requests)
        proposals = self._acceptance.proposals(candidates, context.draft.keys())
        for row, proposers in zip(rows.tolist(), candidates.lanes, strict=True):
            for lane in proposers:
                if lane in asked:
                    asked[lane].discard(row)
        drafting_s = max(candidates.drafting_s)
        chosen = choose(
            rows,
            BatchProgress.of(requests, self._terms[rows]),
            candidates.trees,
            proposals,
            self._acceptance.tables,
            self._trust.trusted,
            self._no_harm.accounts,
            Around(
                context.verify.piecewise,
                context.prefill_tokens,
                draft_room(len(requests), context),
                now,
                drafting_s + context.handling_s,
                context.waiting_s,
                context.handling_s,
            ),
            Wish(self._params.objective == "fair", self._params.most_for_need),
        )
        self.needs_over_harm += chosen.needs_over_harm
        self._usual_s += _USUAL_STEP * (chosen.seconds - self._usual_s)
        return chosen.kept

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        places = [self._rows.get(one.request) for one in outcomes]
        known = [one for one, row in zip(outcomes, places, strict=True) if row is not None]
        if known:
            rows = np.array([row for row in places if row is not None], np.int64)
            self._note_silence(rows)
            self._trust.settle(rows, np.array([float(one.accepted) for one in known]))
            self._no_harm.settle(
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
        self._kept = None
        if row is not None:
            self._acceptance.forget(row)
            for asked in self._asked.values():
                asked.discard(row)
            self._no_harm.forget(row)
            self._trust.forget(row)

    def _note_silence(self, rows: Ints) -> None:
        """Who was asked for a draft and had none: a lookup that finds nothing."""
        here = set(rows.tolist())
        for lane, asked in self._asked.items():
            silent = asked & here
            if silent:
                asked -= silent
                self._acceptance.miss(np.array(sorted(silent), np.int64), lane)

    def _rows_of(self, requests: Sequence[RequestView]) -> Ints:
        names = [request.name for request in requests]
        known = self._rows.known(names)
        if known is not None:
            return known
        rows = self._rows.of(names)
        for accounts in (self._acceptance, self._no_harm, self._trust):
            accounts.reserve(len(self._rows))
        self._terms = with_rows(self._terms, len(self._rows))
        self._terms[rows] = request_terms(requests)
        return rows

    def _asked_of(self, lanes: Lanes) -> Asked:
        return Asked(
            np.array(lanes.starts, np.int64),
            lanes.request,
            lanes.unread,
            call_rows(lanes.steps, lanes.call_s),
            self._acceptance.numbers(lanes.names),
            np.array([self._ranks_of(lane) for lane in lanes.names]),
        )

    def _ranks_of(self, lane: str) -> Floats:
        calibration = self._calibrations.get(lane)
        return NO_RANK_COUNTS if calibration is None else calibration.rank_counts


def _plan_of(depths: Sequence[int], width: int, rule: PlannerStepRule | None) -> DraftPlan:
    limit = {depth: DraftLimit(depth, width) for depth in set(depths)}
    return DraftPlan([limit[depth] for depth in depths], rule)
