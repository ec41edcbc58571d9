"""Our default: one plan for the whole round, fair to every request (DESIGN 4.6).

Precedence: budgets; needs of SLO requests, the greatest A(r) first; SLOs; no harm to the others;
then the objective, proportionally fair or throughput. `plan` decides who drafts and how wide,
`GrowthRule` how deep while drafting goes on, `select` what is verified of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.calibration import IDENTITY, Calibration
from policies.protocols import Candidate, DraftLimit, DraftPlan, Mask, RoundContext
from policies.request import RequestView, RoundOutcome
from policies.speculation.belief import Beliefs
from policies.speculation.forest import (
    Floats,
    Forest,
    Ints,
    depth_left,
    room,
    tokens_read,
    verify_seconds,
)
from policies.speculation.growth import GrowthRule, RoundCosts
from policies.speculation.ledger import Ledger, Trust
from policies.speculation.prefix import (
    Choice,
    Gains,
    Objective,
    TimeCaps,
    best_prefix,
    urgent_nodes,
)
from policies.speculation.slo import decoding_s, need
from policies.speculation.width import best_width

_USUAL_STEP = 0.2
"""Weight of the last round in the usual one."""


@dataclass(frozen=True, slots=True)
class PlannerParams:
    objective: Objective = "fair"
    """fair: Σ log(1 + gain) - n·log T. throughput: (n + Σ gain) / T, without no-harm."""
    max_depth: int = 8
    max_width: int = 3
    """1 where the verifier takes chains only."""
    most_for_need: int = 16
    """Draft tokens that one request may take for its SLO alone (AdaServe's n_max)."""
    no_harm: float = 0.97
    """What a request without an SLO keeps of its speed under plain decoding, at least."""
    window: int = 32
    """Rounds over which it does."""
    repay: float = 0.25
    """The part of a debt that one round must repay."""
    explore: float = 0.01
    """Share of the time that may go into drafts that are not expected to pay."""
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
        self._ledger = Ledger(self._params.no_harm, self._params.window, self._params.repay)
        self._trust = Trust()
        self._lane_of: dict[str, str] = {}
        self._explore_s: dict[str, float] = {}
        """By lane: seconds that may be spent on finding out."""
        self._usual_s = 0.0
        """A running mean of T: how long a request of the batch waits for its next verdict."""
        self.needs_over_harm = 0
        """Rounds in which a need was served at the price of a no-harm cap."""

    def plan(
        self, batch: Sequence[RequestView], lane: str, context: RoundContext, now: float
    ) -> DraftPlan:
        for request in batch:
            self._lane_of[request.name] = lane
        depths = np.array([depth_left(request) for request in batch])
        rule = self._rule(batch, lane, context, now)
        able = np.flatnonzero(depths > 0)
        begins = np.zeros(len(batch), np.bool_)
        begins[able] = rule.worthwhile(able, 0)
        begins[self._explorers(batch, lane, rule, able, begins)] = True
        if not begins.any():
            return DraftPlan([DraftLimit(0)] * len(batch))
        depths = np.where(begins, np.minimum(depths, self._params.max_depth), 0)
        limits = [DraftLimit(depth, rule.width) for depth in depths.tolist()]
        return DraftPlan(limits, rule)

    def select(
        self, candidates: Sequence[Candidate], context: RoundContext, now: float
    ) -> list[Mask]:
        if not candidates:
            return []
        requests = [candidate.request for candidate in candidates]
        promised = Forest.of(candidates)
        self._learn(requests, promised)
        trust = np.array([self._trust.of(request.name) for request in requests])
        forest = promised.trusted(trust)
        most = min(len(forest), room(len(requests), context))
        verify_s = verify_seconds(context, tokens_read(requests), len(requests), most)
        drafting_s = max(candidate.drafting_s for candidate in candidates)
        # Two verdicts of a request lie so far apart, by the number of draft tokens.
        seconds = drafting_s + context.waiting_s + verify_s
        plain_s = float(seconds[0]) - drafting_s
        no_harm = self._no_harm_caps(requests, plain_s)
        choice = self._choose(requests, forest, seconds, now - drafting_s, no_harm)
        self.needs_over_harm += choice.needs_over_harm
        self._usual_s += _USUAL_STEP * (choice.seconds - self._usual_s)
        slowdown = choice.seconds / plain_s if plain_s > 0.0 else 1.0
        tokens = promised.gains(choice.nodes)
        for request, gain, before_trust in zip(
            requests, choice.gain.tolist(), tokens.tolist(), strict=True
        ):
            self._ledger.enter(request.name, 1.0 + gain, slowdown)
            self._trust.promise(request.name, before_trust)
        return forest.masks(choice.nodes)

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        for outcome in outcomes:
            self._trust.settle(outcome)

    def forget(self, request: str) -> None:
        self._lane_of.pop(request, None)
        self._beliefs.forget(request)
        self._ledger.forget(request)
        self._trust.forget(request)

    # -- planning ------------------------------------------------------------------------------

    def _rule(
        self, batch: Sequence[RequestView], lane: str, context: RoundContext, now: float
    ) -> GrowthRule:
        costs = RoundCosts(
            verify=context.verify,
            draft=context.draft.get(lane),
            read=tokens_read(batch),
            fixed=len(batch) + context.other_tokens,
            waiting_s=context.waiting_s,
            room=room(len(batch), context),
            draft_budget=context.draft_budget,
        )
        plain_s = costs.seconds(0, 0.0)
        calibration = self._calibrations.get(lane)
        acceptance = np.array(self._beliefs.acceptances([one.name for one in batch], lane))
        needs = _needs(batch, now + max(plain_s, self._usual_s)) - 1.0
        # Of a chain to the greatest depth: p + p² + ...
        within_reach = needs <= np.sum(
            acceptance[:, None] ** np.arange(1, self._params.max_depth + 1), axis=1
        )
        slo = self._slo_caps(batch, now)
        slo.offset[~within_reach] = np.inf  # lost in this round, whatever it costs the others
        return GrowthRule(
            costs=costs,
            objective=self._params.objective,
            names=tuple(request.name for request in batch),
            context=np.array([request.context for request in batch]),
            acceptance=acceptance,
            needs=needs,
            promised=np.where(within_reach, np.maximum(needs, 0.0), 0.0),
            tpot=np.array([request.slo.tpot_s or 0.0 for request in batch]),
            caps=slo.beside(self._no_harm_caps(batch, plain_s)),
            trust=np.array([self._trust.of(request.name) for request in batch]),
            survival=calibration.survival if calibration else IDENTITY,
            width=best_width(
                acceptance,
                self._sibling_shares(lane),
                costs,
                self._params.objective,
                self._params.max_depth,
            ),
        )

    def _sibling_shares(self, lane: str) -> list[float]:
        """P(one of the siblings behind the first is right | the first is not), by width."""
        wrong = 1.0 - self._beliefs.of_lane(lane)
        calibration = self._calibrations.get(lane)
        shares, share = [0.0], wrong / 3
        for rank in range(1, self._params.max_width):
            # Before it was seen, a sibling is three quarters as good as the one before it, the
            # second one right in a quarter of what the first leaves over.
            share *= 0.75
            if calibration is not None:
                share = calibration.rank_share(rank, share)
            shares.append(min(1.0, shares[-1] + share / max(wrong, share, 1e-9)))
        return shares

    def _explorers(
        self,
        batch: Sequence[RequestView],
        lane: str,
        rule: GrowthRule,
        able: Ints,
        begins: Mask,
    ) -> list[int]:
        """Who drafts although it is not expected to pay: those known least, as far as the
        seconds set aside for it go. Without it a drafter that once looked bad stays so."""
        plain_s = rule.costs.seconds(0, 0.0)
        saved_s = self._explore_s.get(lane, 0.0) + self._params.explore * plain_s
        self._explore_s[lane] = saved_s = min(saved_s, plain_s)
        idle = [number for number in able.tolist() if not begins[number]]
        if not idle:
            return []
        idle.sort(key=lambda number: self._beliefs.evidence(batch[number].name, lane))
        begun = np.flatnonzero(begins)
        idle = idle[: max(0, rule.begin_at_most(len(able)) - len(begun))]
        without_s, cap_s = rule.round_s(begun), rule.tightest_cap_s()
        while idle:
            with_s = rule.round_s(np.concatenate([begun, np.array(idle)]))
            if with_s - without_s <= saved_s and with_s <= cap_s:
                self._explore_s[lane] = saved_s - (with_s - without_s)
                break
            idle = idle[: len(idle) // 2]
        return idle

    # -- selection -----------------------------------------------------------------------------

    def _learn(self, requests: Sequence[RequestView], forest: Forest) -> None:
        """Each tree's levels: how much of the one above survived, by calibrated confidence."""
        if not len(forest):
            return
        levels = int(forest.depth.max())
        where = forest.owner * levels + forest.depth - 1
        mass = np.bincount(where, forest.path, len(requests) * levels)
        mass = np.minimum(mass.reshape(-1, levels), 1.0)
        deepest = np.zeros(len(requests), np.int64)
        np.maximum.at(deepest, forest.owner, forest.depth)
        survived = mass.sum(axis=1)
        last = mass[np.arange(len(requests)), np.maximum(deepest - 1, 0)]
        reached = 1.0 + survived - last
        for number in np.flatnonzero(deepest).tolist():
            name = requests[number].name
            lane = self._lane_of.get(name)
            if lane is not None:
                self._beliefs.observe(name, lane, float(survived[number]), float(reached[number]))

    def _choose(
        self,
        requests: Sequence[RequestView],
        forest: Forest,
        seconds: Floats,
        begun_s: float,
        no_harm: TimeCaps,
    ) -> Choice:
        """`begun_s`: when the round did, from which `seconds` count."""
        kind, most, count = self._params.objective, len(seconds) - 1, len(requests)
        gains = Gains.of(forest)
        ranking = gains.ranked(kind, most)
        value = ranking.objective(kind, count, seconds)
        free = best_prefix(ranking, value, seconds, TimeCaps.none(count), no_harm)
        slo = self._slo_caps(requests, begun_s)
        if np.all(free.seconds <= slo.at(free.gain)):
            return free
        urgency = _needs(requests, begun_s + free.seconds)
        least = _needs(requests, begun_s + float(seconds[0]))
        urgent, hopeless = urgent_nodes(
            gains,
            urgency,
            least,
            worth_s=np.array([request.slo.tpot_s or 0.0 for request in requests]),
            node_s=float(seconds[-1] - seconds[0]) / max(1, most),
            most=self._params.most_for_need,
        )
        slo.offset[hopeless] = np.inf
        ranking = gains.needs_first(kind, urgent, urgency, most)
        value = ranking.objective(kind, count, seconds)
        return best_prefix(ranking, value, seconds, slo, no_harm)

    # -- both ----------------------------------------------------------------------------------

    def _slo_caps(self, requests: Sequence[RequestView], since: float) -> TimeCaps:
        """(l + T) / (o + 1 + g) ≤ t_TPOT (AdaServe, eq. 2), T counted from `since`."""
        caps = TimeCaps.none(len(requests))
        for number, request in enumerate(requests):
            if request.slo.tpot_s is not None and request.first_token_s is not None:
                behind_first = request.generated - 1
                caps.slope[number] = request.slo.tpot_s
                caps.offset[number] = request.slo.tpot_s * behind_first - decoding_s(request, since)
        return caps

    def _no_harm_caps(self, requests: Sequence[RequestView], plain_s: float) -> TimeCaps:
        if self._params.objective == "throughput":
            return TimeCaps.none(len(requests))
        return self._ledger.caps(requests, plain_s)


def _needs(requests: Sequence[RequestView], verdict_s: float) -> Floats:
    return np.array([need(request, verdict_s) for request in requests])
