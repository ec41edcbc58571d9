"""The default speculation policy: rounds in which all requests together decode as fast as possible,
and within which SLOs are kept.

Precedence: the capacity of a forward; needs of SLO requests, the greatest A(r) first; SLO caps; the
speed of all requests. `plan` decides how wide each lane drafts, `PlannerStepRule` how deep, level
by level, and `select` which nodes are verified. The last two use the same search over what can be
added to a round (best_prefix.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

import numpy as np

from policies.estimates.acceptance import level_accepted
from policies.estimates.calibration import IDENTITY, NO_RANK_COUNTS, Calibration
from policies.protocols import Candidates, DraftLimit, DraftPlan, LaneBatch, Mask, RoundContext
from policies.ranges import DRAFT_DEPTH, DRAFT_WIDTH, require
from policies.request import RequestView
from policies.speculation.forest import context_tokens, draft_room, draft_tokens_left
from policies.speculation.planner.beam_width import (
    RoundTimes,
    best_width,
    round_requests,
    sibling_shares,
)
from policies.speculation.planner.best_prefix import first_token_limit
from policies.speculation.planner.lookup_worth import LookupWorth
from policies.speculation.planner.round_costs import RoundCosts, chances_of, round_seconds
from policies.speculation.planner.select import RoundState, select_round
from policies.speculation.planner.step_rule import LaneCosts, PlannerStepRule
from policies.speculation.slo import BatchProgress

_ROUND_MEMORY = 0.2
"""Weight of the last round in the running mean of a round's time."""


@dataclass(frozen=True, slots=True)
class PlannerParams:
    max_depth: int = 8
    max_width: int = 3
    """Maximum width of models' draft trees, if the verifier takes trees."""

    def __post_init__(self) -> None:
        require(DRAFT_DEPTH, max_depth=self.max_depth)
        require(DRAFT_WIDTH, max_width=self.max_width)


class Planner:
    """`calibrations`: of each lane, for the raw confidences in its step rule. Those of `Candidates`
    are calibrated already."""

    def __init__(
        self,
        params: PlannerParams | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        self._params = params or PlannerParams()
        self._calibrations = calibrations or {}
        self._round_s = 0.0
        """Running mean of the time between two verdicts of a request."""
        self._worth = LookupWorth()

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        requests = list({one.name: one for batch in batches for one in batch.requests}.values())
        drafting = [batch for batch in batches if batch.lane and batch.requests]
        models = [batch for batch in drafting if batch.lane in context.draft]
        lookups = [batch for batch in drafting if batch.lane not in context.draft]
        plans = self._plan_lookups(lookups, requests, context) if lookups else {}
        if models:
            plans |= self._plan_models(models, lookups, requests, context, now)
        return [plans.get(batch.lane) or DraftPlan.plain(batch) for batch in batches]

    def _plan_lookups(
        self, lookups: Sequence[LaneBatch], requests: Sequence[RequestView], context: RoundContext
    ) -> dict[str | None, DraftPlan]:
        """Only chains: of second tokens lookups are more confident than right."""
        names = list({one.name: None for batch in lookups for one in batch.requests})
        verify_s = context.verify.predict(context_tokens(requests), len(requests))
        round_s = context.waiting_s + verify_s
        drafting = self._worth.drafting(names, context.handling_s, round_s)
        plans: dict[str | None, DraftPlan] = {}
        for batch in lookups:
            limits = self._limits(batch, 1)
            if len(drafting) < len(names):
                limits = [
                    limit if one.name in drafting else DraftLimit(0)
                    for one, limit in zip(batch.requests, limits, strict=True)
                ]
            plans[batch.lane] = DraftPlan(limits)
        return plans

    def _limits(self, batch: LaneBatch, width: int) -> list[DraftLimit]:
        most = self._params.max_depth
        return [DraftLimit(min(most, draft_tokens_left(one)), width) for one in batch.requests]

    def _plan_models(
        self,
        models: Sequence[LaneBatch],
        lookups: Sequence[LaneBatch],
        requests: Sequence[RequestView],
        context: RoundContext,
        now: float,
    ) -> dict[str | None, DraftPlan]:
        names, max_depth = tuple([one.name for one in requests]), self._params.max_depth
        known = context.acceptance.rows(names)  # first, since it may enlarge the tables
        place = {name: number for number, name in enumerate(names)}
        members = [[place[one.name] for one in batch.requests] for batch in (*models, *lookups)]
        starts = np.array([*accumulate(map(len, members), initial=0)], np.int64)
        numbers = context.acceptance.numbers([batch.lane or "" for batch in (*models, *lookups)])
        tables = context.acceptance.tables
        chances = chances_of(
            tables,
            known,
            starts,
            np.concatenate(members, dtype=np.int64),
            numbers,
        )
        costs = RoundCosts(
            verify=context.verify.piecewise,
            context=float(context_tokens(requests)),
            base_tokens=float(len(requests) + context.prefill_tokens),
            # Lookups draft in any case, so their handling does not depend on what models do.
            wait_s=context.waiting_s + (context.handling_s if lookups else 0.0),
            overhead_s=0.0 if lookups else context.handling_s,
            room=draft_room(len(requests), context),
        )
        plain_s = costs.wait_s + context.verify.predict(costs.context, costs.base_tokens)
        first_token_limit_s = _first_token_limit_s(costs, context, now)
        expected = round_requests(
            BatchProgress.of(requests),
            chances,
            len(models),
            max_depth,
            RoundTimes(now, plain_s, self._round_s, first_token_limit_s),
        )
        plans: dict[str | None, DraftPlan] = {}
        for lane, (batch, at) in enumerate(zip(models, members, strict=False)):
            name = batch.lane or ""
            calibration = self._calibrations.get(name)
            ranks = calibration.rank_counts if calibration else NO_RANK_COUNTS
            own = LaneCosts(context.draft[name].piecewise, context.call_s.get(name, 0.0))
            wrong = 1.0 - level_accepted(tables, numbers[lane])
            width = best_width(
                chances[lane][:, at],
                expected.context[at].sum(),
                sibling_shares(wrong, ranks, self._params.max_width if context.trees else 1),
                own.step,
                own.call_s,
                costs,
                len(requests) - len(at),
                max_depth,
            )
            if not width and not expected.min_gain[at].any():
                continue  # plain decoding is faster, and keeps all SLOs
            step_s = own.step.predict(expected.context[at].sum(), float(len(at)))
            if round_seconds(costs, 0.0, own.call_s + step_s) > first_token_limit_s:
                continue  # one level would make a first token late
            survival = calibration.survival if calibration else IDENTITY
            rule = PlannerStepRule(
                costs, own, names, expected, chances[lane], survival, max(1, width)
            )
            plans[batch.lane] = DraftPlan(self._limits(batch, rule.width), rule)
        return plans

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        requests = candidates.requests
        if not requests:
            return np.zeros(0, np.bool_)
        selected = select_round(
            BatchProgress.of(requests),
            candidates.trees,
            RoundState(
                context.verify.piecewise,
                context.prefill_tokens,
                draft_room(len(requests), context),
                now,
                max(candidates.drafting_s) + context.handling_s,
                context.waiting_s,
                np.array(context.first_tokens.due_s, np.float64),
            ),
        )
        self._round_s += _ROUND_MEMORY * (selected.seconds - self._round_s)
        self._worth.observe(candidates, selected.kept, context)
        return selected.kept


def _first_token_limit_s(costs: RoundCosts, context: RoundContext, now: float) -> float:
    """Requests.first_token_limit_s of a round that also reads the prompts of those first tokens."""
    due_s, prompt_tokens = context.first_tokens
    if not due_s:
        return inf
    plain_s = context.verify.predict(costs.context, costs.base_tokens)
    prompts_s = context.verify.predict(costs.context, costs.base_tokens + prompt_tokens) - plain_s
    return first_token_limit(np.array(due_s) - now - prompts_s, costs.wait_s + plain_s)
