"""Our own selection: every lane's score, not only that of the lane that drafted.

Whenever a drafter catches up on committed tokens one sees which of them it would have drafted: an
unbiased score, for nothing (full information, as in HedgeSpec). So it need not explore requests
blindly, as LBSS does; and what one request teaches is a prior for the next, because most are too
short to pay for lessons of their own.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, sqrt

import numpy as np

from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.evidence import PLAIN, Evidence
from policies.selection.roster import Roster
from policies.selection.seats import Seats
from policies.selection.worth import after_switch, tokens_left


@dataclass(frozen=True, slots=True)
class HedgeParams:
    prior_slots: float = 4.0
    """Slots of its own after which a request's evidence weighs as much as everyone's."""
    own_decay: float = 0.97
    """Of a request's evidence, per slot of its own: texts change as they go on."""
    pool_decay: float = 0.999
    """Of everyone's evidence, per slot of anyone: load and drafters change."""
    hold_slots: int = 4
    """Slots of a request, on average, between two decisions."""
    stay: float = 0.02
    """A move must promise so much more goodput: estimates are noisy."""
    horizon_tokens: int = 128
    """A switch must pay within so many tokens."""
    doubt: float = 0.3
    """Relative error of a drafter's prior after one slot, falling with the root of its slots. Each
    request takes priors wrong by a random draw of it, so that requests try different drafters
    while little is known, and agree once much is."""
    curiosity: float = 0.5
    """The same for a request's own evidence where the next catch-up is chosen, which costs
    nothing: added, not drawn."""

    def __post_init__(self) -> None:
        if self.prior_slots <= 0 or self.horizon_tokens < 1 or self.hold_slots < 1:
            raise ValueError("prior_slots, horizon_tokens and hold_slots are above 0")
        if not (0 < self.own_decay <= 1 and 0 < self.pool_decay <= 1):
            raise ValueError("own_decay and pool_decay are above 0 and at most 1")
        if min(self.stay, self.doubt, self.curiosity) < 0:
            raise ValueError("stay, doubt and curiosity are not negative")


@dataclass(slots=True)
class _Request:
    draws: dict[str, float] = field(default_factory=dict)
    """By drafter: in which direction this request doubts the prior."""
    caught_up: dict[str, int] = field(default_factory=dict)
    """By lane: committed tokens that it has, as far as we know."""


class Hedge:
    def __init__(self, params: HedgeParams = HedgeParams(), seed: int = 0) -> None:
        self._params = params
        self._rng = np.random.default_rng(seed)
        self._roster = Roster()
        self._evidence = Evidence(params.prior_slots, params.own_decay, params.pool_decay)
        self._requests: dict[str, _Request] = {}
        self._mapping: dict[str, str | None] = {}
        self._load: Counter[str | None] = Counter()
        self._slots = 0
        """Ended since the last decision."""

    def assign(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView], now: float
    ) -> Mapping[str, str | None]:
        changed = self._roster.changed(requests, lanes)
        if changed or self._slots >= self._params.hold_slots * len(requests):
            self._slots = 0
            self._mapping = self._decide(requests, lanes)
            self._load = Counter(self._mapping.values())
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        """The drafter most worth knowing more about: the best by an estimate that flatters what
        has been seen little. Not the one that drafts now: its own rounds tell all. Of its lanes
        the one that has caught up furthest, or else has most to spare."""
        known = self._requests.get(request)
        if known is None:
            return None
        now = self._roster.lanes.get(self._mapping.get(request) or "")
        lanes = [
            lane
            for lane in self._roster.lanes.values()
            if now is None or lane.drafter != now.drafter
        ]
        if not lanes:
            return None

        def hope(drafter: str) -> float:
            slots = self._evidence.own_slots(request, drafter)
            flattery = 1 + self._params.curiosity / sqrt(1 + slots)
            return self._goodput(request, drafter) * flattery

        def readiness(lane: LaneView) -> tuple[int, int]:
            return known.caught_up.get(lane.name, 0), lane.capacity - self._load[lane.name]

        best = max(dict.fromkeys(lane.drafter for lane in lanes), key=hope)
        return max((lane for lane in lanes if lane.drafter == best), key=readiness).name

    def observe(self, outcome: RoundOutcome) -> None:
        if outcome.request not in self._requests:
            return
        self._slots += 1
        self._evidence.fade(outcome.request)
        drafter, seconds = self._roster.drafter(outcome), self._roster.slot_seconds(outcome)
        if seconds is None:
            return
        if outcome.lane is None:
            self._evidence.add_plain(outcome.committed, seconds)
        elif drafter is not None:
            self._learn(outcome.request, outcome.lane, drafter, outcome.committed, seconds)
            self._evidence.bound_plain(outcome.seconds - outcome.draft_s)

    def observe_score(self, request: str, lane: str, tokens: float, seconds: float) -> None:
        if request in self._requests and lane in self._roster.lanes:
            self._learn(request, lane, self._roster.lanes[lane].drafter, tokens, seconds)

    def forget(self, request: str) -> None:
        self._requests.pop(request, None)
        self._evidence.forget(request)
        self._mapping.pop(request, None)

    def _learn(self, request: str, lane: str, drafter: str, tokens: float, seconds: float) -> None:
        self._evidence.add(request, drafter, tokens, seconds)
        view = self._roster.requests.get(request)
        if view is not None:
            self._requests[request].caught_up[lane] = view.context

    def _decide(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView]
    ) -> dict[str, str | None]:
        values = np.zeros((len(requests), len(lanes)))
        plain = np.zeros(len(requests))
        for row, request in enumerate(requests):
            known = self._requests.setdefault(request.name, _Request())
            known.caught_up = {lane.name: known.caught_up.get(lane.name, 0) for lane in lanes}
            values[row] = self._values(request, known, lanes)
            plain[row] = self._goodput(request.name, PLAIN)
            if self._mapping.get(request.name, PLAIN) is None:
                plain[row] *= 1 + self._params.stay
        names = [request.name for request in requests]
        return Seats(lanes).match(names, values, plain, self._mapping)

    def _values(
        self, request: RequestView, known: _Request, lanes: Sequence[LaneView]
    ) -> list[float]:
        """Goodput on each lane over the tokens that are left, switching included."""
        tokens = tokens_left(request, self._params.horizon_tokens)
        here = self._mapping.get(request.name)
        goodput: dict[str, float] = {}
        values = []
        for lane in lanes:
            if lane.drafter not in goodput:
                goodput[lane.drafter] = self._goodput(request.name, lane.drafter)
            unseen = max(0, request.context - known.caught_up[lane.name])
            value = after_switch(goodput[lane.drafter], unseen * lane.catch_up_s, tokens)
            values.append(value * (1 + self._params.stay) if lane.name == here else value)
        return values

    def _goodput(self, request: str, drafter: str) -> float:
        """The estimate, as this request doubts it."""
        draws = self._requests[request].draws
        if drafter not in draws:
            draws[drafter] = float(self._rng.standard_normal())
        doubt = self._params.doubt * draws[drafter] / sqrt(1 + self._evidence.slots(drafter))
        return self._evidence.goodput(request, drafter) * exp(doubt)
