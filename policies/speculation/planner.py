"""Our default: one plan for the whole round, fair to every request (DESIGN 4.6).

Precedence: what a forward takes; needs of SLO requests, the greatest A(r) first; SLOs; no harm to
the others; then the objective, proportionally fair or throughput. `plan` decides for all lanes who
begins to draft and how wide (beginning.py), `GrowthRule` how deep while drafting goes on, `select`
what is verified of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from policies.calibration import Calibration
from policies.cost import FOR_NOTHING
from policies.protocols import Ask, Candidate, DraftLimit, DraftPlan, Mask, RoundContext
from policies.request import RequestView, RoundOutcome
from policies.rows import Rows
from policies.speculation.beginning import begin
from policies.speculation.belief import Beliefs
from policies.speculation.forest import Floats, Forest, Ints, room, verify_seconds
from policies.speculation.growth import GrowthRule
from policies.speculation.idle import IdleLanes
from policies.speculation.lanes import Lanes, chances_of, rules_of
from policies.speculation.ledger import Ledger, Trust
from policies.speculation.prefix import (
    Choice,
    Objective,
    TimeCaps,
    best_prefix,
    freely,
    urgent_nodes,
)
from policies.speculation.prospects import Calls, RoundCosts, call_rows, everyone, reach_of
from policies.speculation.slo import Standing
from policies.speculation.width import best_widths

_USUAL_STEP = 0.2
"""Weight of the last round in the usual one."""


@dataclass(frozen=True, slots=True)
class PlannerParams:
    objective: Objective = "fair"
    """fair: Σ weight·(log(1 + gain) - log T), the slower a request has been, the more it weighs.
    throughput: (n + Σ gain) / T, without no-harm."""
    max_depth: int = 8
    max_width: int = 3
    """Where the verifier takes trees."""
    most_for_need: int = 16
    """Draft tokens that one request may take for its SLO alone (AdaServe's n_max)."""
    no_harm: float = 0.97
    """What a request without an SLO keeps of its speed under plain decoding, at least."""
    window: int = 128
    """Rounds over which it does."""
    exceptions: float = 0.05
    """The share of requests that may end below `no_harm`, being short; a group of requests that is
    a fifth of all, and worse off than the others, then has it for three quarters of its own."""
    repay: float = 0.25
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
        self._beliefs = Beliefs(self._params.prior_acceptance, self._params.prior_weight)
        self._ledger = Ledger(
            self._params.no_harm,
            self._params.window,
            self._params.repay,
            self._params.exceptions,
        )
        self._trust = Trust()
        self._idle = IdleLanes(self._params.explore, self._beliefs)
        self._rows = Rows()
        self._asked: dict[str, set[int]] = {}
        """By lane: rows of those who draft there in this round, and have proposed nothing yet."""
        self._usual_s = 0.0
        """A running mean of T: how long a request of the batch waits for its next verdict."""
        self.needs_over_harm = 0
        """Rounds in which a need was served at the price of a no-harm cap."""

    def plan(self, asks: Sequence[Ask], context: RoundContext, now: float) -> list[DraftPlan]:
        plans = [DraftPlan.plain(ask) for ask in asks]
        awake = [place for place, ask in enumerate(asks) if self._idle.is_awake(ask, self._rows)]
        if not awake:
            return plans
        requests = list({one.name: one for ask in asks for one in ask.batch}.values())
        standing, rows = Standing.of(requests), self._rows_of(requests)
        weight = self._weights(standing, rows)
        costs = RoundCosts(
            verify=context.verify.bent,
            draft=FOR_NOTHING,
            call_s=0.0,
            read=float(standing.context.sum()),
            fixed=float(len(requests) + context.other_tokens),
            waiting_s=context.waiting_s,
            handling_s=context.handling_s,
            elsewhere_s=0.0,
            room=room(len(requests), context),
            weights=float(weight.sum()),
        )
        places = {one.name: place for place, one in enumerate(requests)}
        asked = [asks[place] for place in awake]
        lanes = self._lanes(asked, places, standing, rows, costs, context)
        plain_s = costs.seconds(0, 0.0)
        waiting = everyone(
            standing,
            reach_of(lanes.chances, len(requests), self._params.max_depth),
            self._no_harm_caps(standing, rows, plain_s),
            weight,
            now,
            now + max(plain_s, self._usual_s),
        )
        objective = self._params.objective
        begun = begin(lanes.chances, lanes.calls, waiting, costs, objective == "fair")
        rules = rules_of(lanes, places, begun, waiting, costs, objective, self._calibrations)
        for lane, (place, rule) in enumerate(zip(awake, rules, strict=True)):
            begins = begun.depth[lanes.pairs(lane)] > 0
            name, at = lanes.names[lane], lanes.at(lane)
            able = standing.left[at] > 0
            begins |= self._idle.explorers(name, at, rows, able, begins, rule, plain_s)
            deepest = lanes.chances.deepest[lanes.pairs(lane)]
            plans[place] = self._plan_of(name, rows[at], deepest, rule, begins)
        if any(limit.depth for plan in plans for limit in plan.limits):
            # Drafts may turn out empty: the round has been held up even so.
            self._ledger.expect(
                rows, np.zeros(len(rows)), 0.0, context.waiting_s, context.handling_s
            )
        return plans

    def select(
        self, candidates: Sequence[Candidate], context: RoundContext, now: float
    ) -> list[Mask]:
        if not candidates:
            return []
        requests = [candidate.request for candidate in candidates]
        standing, rows = Standing.of(requests), self._rows_of(requests)
        promised = Forest.of(candidates)
        self._beliefs.observe(rows, candidates, promised, context.draft.keys())
        for row, candidate in zip(rows.tolist(), candidates, strict=True):
            for lane in candidate.lanes:
                if lane in self._asked:
                    self._asked[lane].discard(row)
        forest = promised.trusted(self._trust.of(rows))
        most = min(forest.nodes, room(len(requests), context))
        verify_s = verify_seconds(context, float(standing.context.sum()), len(requests), most)
        drafting_s = max(candidate.drafting_s for candidate in candidates) + context.handling_s
        # Two verdicts of a request lie so far apart, by the number of draft tokens.
        seconds = drafting_s + context.waiting_s + verify_s
        plain_s = float(seconds[0]) - drafting_s
        no_harm = self._no_harm_caps(standing, rows, plain_s)
        weight = self._weights(standing, rows)
        choice = self._choose(standing, forest, weight, seconds, now - drafting_s, no_harm)
        self.needs_over_harm += choice.needs_over_harm
        self._usual_s += _USUAL_STEP * (choice.seconds - self._usual_s)
        kept_s = float(verify_s[len(choice.nodes)])
        drafts_share = 1.0 - float(verify_s[0]) / kept_s if kept_s > 0.0 else 0.0
        self._ledger.expect(rows, choice.gain, drafts_share, context.waiting_s, context.handling_s)
        self._trust.promise(rows, promised.gains(choice.nodes))
        return forest.masks(choice.nodes)

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        places = [self._rows.get(one.request) for one in outcomes]
        known = [one for one, row in zip(outcomes, places, strict=True) if row is not None]
        if known:
            rows = np.array([row for row in places if row is not None], np.int64)
            self._note_silence(rows)
            self._trust.settle(rows, np.array([float(one.accepted) for one in known]))
            self._ledger.settle(
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
            self._beliefs.read(row, lane, np.array(matched), np.array(covered))

    def forget(self, request: str) -> None:
        row = self._rows.drop(request)
        if row is not None:
            self._beliefs.forget(row)
            for asked in self._asked.values():
                asked.discard(row)
            self._ledger.forget(row)
            self._trust.forget(row)

    def _note_silence(self, rows: Ints) -> None:
        """Who was asked for a draft and had none: a lookup that finds nothing."""
        here = set(rows.tolist())
        for lane, asked in self._asked.items():
            silent = asked & here
            if silent:
                asked -= silent
                self._beliefs.miss(np.array(sorted(silent), np.int64), lane)

    def _rows_of(self, requests: Sequence[RequestView]) -> Ints:
        before = len(self._rows)
        rows = self._rows.of([request.name for request in requests])
        if len(self._rows) > before:
            for accounts in (self._beliefs, self._ledger, self._trust):
                accounts.reserve(len(self._rows))
        return rows

    # -- planning ------------------------------------------------------------------------------

    def _lanes(
        self,
        asks: Sequence[Ask],
        places: Mapping[str, int],
        standing: Standing,
        rows: Ints,
        costs: RoundCosts,
        context: RoundContext,
    ) -> Lanes:
        names = [ask.lane or "" for ask in asks]
        sizes = [len(ask.batch) for ask in asks]
        starts = [*accumulate(sizes, initial=0)]
        at = np.array([places[one.name] for ask in asks for one in ask.batch], np.int64)
        lane = np.repeat(np.arange(len(asks)), sizes)
        belief = self._beliefs.of(rows[at], names, lane)
        unread = [count for ask in asks for count in ask.unread or [1] * len(ask.batch)]
        steps = [context.draft[one].bent if one in context.draft else FOR_NOTHING for one in names]
        calls = call_rows(steps, [context.call_s.get(one, 0.0) for one in names])
        widest = self._params.max_width if context.trees else 1
        widths = best_widths(
            starts,
            belief,
            standing.context[at],
            [self._sibling_shares(name, widest) for name in names],
            len(places),
            calls,
            costs,
            self._params.objective,
            self._params.max_depth,
        )
        chances = chances_of(
            at,
            lane,
            belief,
            self._trust.of(rows)[at] * belief.added,
            np.maximum(np.array(unread, np.float64), 1.0),
            standing,
            self._params.max_depth,
        )
        return Lanes(names, starts, steps, Calls(calls, widths), chances)

    def _plan_of(
        self, lane: str, rows: Ints, deepest: Ints, rule: GrowthRule, begins: Mask
    ) -> DraftPlan:
        self._asked.setdefault(lane, set()).update(rows[begins].tolist())
        if not begins.any():
            self._idle.rest(lane)
            return DraftPlan([DraftLimit(0)] * len(begins))
        self._idle.wake(lane)
        depths = (deepest * begins).tolist()
        limit = {depth: DraftLimit(depth, rule.width) for depth in set(depths)}
        return DraftPlan([limit[depth] for depth in depths], rule)

    def _sibling_shares(self, lane: str, widest: int) -> list[float]:
        """P(one of the siblings behind the first is right | the first is not), by width."""
        wrong = 1.0 - self._beliefs.of_lane(lane)
        calibration = self._calibrations.get(lane)
        shares, share = [0.0], wrong / 3
        for rank in range(1, widest):
            # Before it was seen, a sibling is three quarters as good as the one before it, the
            # second one right in a quarter of what the first leaves over.
            share *= 0.75
            if calibration is not None:
                share = calibration.rank_share(rank, share)
            shares.append(min(1.0, shares[-1] + share / max(wrong, share, 1e-9)))
        return shares

    # -- selection -----------------------------------------------------------------------------

    def _choose(
        self,
        standing: Standing,
        forest: Forest,
        weight: Floats,
        seconds: Floats,
        begun_s: float,
        no_harm: TimeCaps,
    ) -> Choice:
        """`begun_s`: when the round did, from which `seconds` count."""
        kind, most = self._params.objective, len(seconds) - 1
        gains, free = freely(forest, kind, weight, most, seconds, no_harm)
        if np.isnan(standing.tpot_s).all():
            return free
        slo = standing.slo_caps(begun_s)
        if np.all(free.seconds <= slo.at(free.gain)):
            return free
        urgency = standing.needs(begun_s + free.seconds)
        least = standing.needs(begun_s + float(seconds[0]))
        urgent, hopeless = urgent_nodes(
            gains,
            urgency,
            least,
            worth_s=standing.token_s,
            node_s=float(seconds[-1] - seconds[0]) / max(1, most),
            most=self._params.most_for_need,
        )
        slo.offset[hopeless] = np.inf
        ranking = gains.needs_first(urgent, urgency, most)
        value = ranking.objective(kind, seconds)
        return best_prefix(ranking, value, seconds, slo, no_harm)

    # -- both ----------------------------------------------------------------------------------

    def _weights(self, standing: Standing, rows: Ints) -> Floats:
        """Requests with an SLO have caps of their own."""
        if self._params.objective == "throughput":
            return np.ones(len(rows))
        return self._ledger.weights(rows, np.isnan(standing.tpot_s))

    def _no_harm_caps(self, standing: Standing, rows: Ints, plain_s: float) -> TimeCaps:
        """For requests without an SLO."""
        if self._params.objective == "throughput":
            return TimeCaps.none(len(rows))
        return self._ledger.caps(rows, np.isnan(standing.tpot_s), plain_s)
