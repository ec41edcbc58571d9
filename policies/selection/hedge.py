"""Our own selection: it learns from the scores of all lanes, not only of the one that drafted.

When a drafter catches up on committed tokens, it shows which of them it would have drafted: an
unbiased score at no cost (full-information feedback, as in HedgeSpec). So it need not explore
blindly, as LBSS does. Evidence is pooled over requests as a prior for new ones, since most requests
are too short to pay for their own exploration.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from policies.pooling import Statistics
from policies.request import LaneView, RequestView, RoundOutcome
from policies.rows import Floats, Ints, Rows, with_rows
from policies.selection.lane_capacity import LaneCapacity
from policies.selection.lane_evidence import PLAIN, Evidence
from policies.selection.membership import Membership
from policies.selection.switching import goodput_after_switch, tokens_left

_NO_LANE = -1
"""Among lane numbers."""


@dataclass(frozen=True, slots=True)
class HedgeParams:
    prior_slots: float = 4.0
    """Slots after which a request's own evidence weighs as much as the pooled evidence."""
    own_decay: float = 0.97
    """Decay of a request's evidence per slot of the request, because texts change."""
    pool_decay: float = 0.999
    """Decay of the pooled evidence under one load per slot of any request, because requests and
    drafters change."""
    hold_slots: int = 4
    """Slots per request, on average, between two decisions."""
    stay: float = 0.02
    """By which share the estimated goodput of another lane must be larger for a switch, because
    estimates are noisy."""
    reluctance: float = 0.1
    """By which share the estimate of plain decoding must be larger than a lane's: with a lane the
    speculation policy can still decide not to draft, but without one it cannot start to draft and
    nothing is learned about drafters."""
    horizon_tokens: int = 128
    """A switch must pay within so many tokens."""
    doubt: float = 0.3
    """Relative error of a drafter's pooled goodput after one request, falling with the root of the
    number of requests. For each request it is a random draw, so that requests try different
    drafters while there is little evidence (as in Thompson sampling)."""
    curiosity: float = 1.0
    """Exploration bonus, relative to the estimated goodput, where the next lane to catch up is
    chosen; it falls with the roots of the request's own slots and of the number of requests."""

    def __post_init__(self) -> None:
        if self.prior_slots <= 0 or self.horizon_tokens < 1 or self.hold_slots < 1:
            raise ValueError("prior_slots, horizon_tokens and hold_slots are above 0")
        if not (0 < self.own_decay <= 1 and 0 < self.pool_decay <= 1):
            raise ValueError("own_decay and pool_decay are above 0 and at most 1")
        if min(self.stay, self.doubt, self.curiosity) < 0 or not 0 <= self.reluctance < 1:
            raise ValueError("stay, doubt and curiosity are not negative, reluctance is below 1")


class Hedge:
    """Arrays have a row per request (`Rows`) and a column per drafter (by `Evidence.number`) or per
    lane (in the order of the last decision)."""

    pool_name = "hedge"

    def __init__(self, params: HedgeParams = HedgeParams(), seed: int = 0) -> None:
        self._params = params
        self._rng = np.random.default_rng(seed)
        self._membership = Membership()
        self._rows = Rows()
        self._evidence = Evidence(params.prior_slots, params.own_decay, params.pool_decay)
        self._draws = np.zeros((0, 1))
        """[request, drafter]: standard normal draws of the error of pooled evidence (`doubt`)."""
        self._lanes: list[str] = []
        self._column: dict[str, int] = {}
        """By lane."""
        self._caught_up = np.zeros((0, 0))
        """[request, lane]: committed tokens that the lane's drafter is known to have processed."""
        self._mapping: dict[str, str | None] = {}
        self._drafting: dict[str, str | None] = {}
        """The lane that drafted in each request's last round; None where it did not draft on its
        lane."""
        self._load: Counter[str | None] = Counter()
        self._slots = 0
        """Slots that have ended since the last decision."""
        self._likely: dict[str, str | None] | None = None
        """The next lane of each request; None: to be computed anew. Rounds on the same lane do not
        invalidate it, since they add evidence only on the present drafter, which is excluded."""

    def assign(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView], now: float
    ) -> Mapping[str, str | None]:
        self._evidence.set_load(len(requests))
        changed = self._membership.changed(requests, lanes)
        if changed or self._slots >= self._params.hold_slots * len(requests):
            self._slots = 0
            self._likely = None
            self._mapping = self._decide(requests, lanes)
            self._load = Counter(self._mapping.values())
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        """The drafter with the best estimate plus exploration bonus (`curiosity`), except the one
        that drafts now, whose rounds are observed anyway; of its lanes the one that has caught up
        furthest, then the one with the most free places."""
        if self._likely is None:
            self._likely = self._likely_lanes()
        return self._likely.get(request)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        drafting, evidence, slot = self._drafting, self._evidence, self._membership.slot
        for outcome in outcomes:
            request, lane = outcome.request, outcome.lane
            row = self._rows.get(request)
            if row is None:
                continue
            self._slots += 1
            if lane != drafting.get(request):
                drafting[request] = lane
                self._likely = None
            drafter, seconds = slot(outcome)
            if seconds is None:
                evidence.observe_slot(row, None)
            elif lane is None:
                evidence.observe_slot(row, PLAIN, outcome.committed, seconds)
                mapped = self._membership.lanes.get(self._mapping.get(request) or "")
                if mapped is not None:
                    # The speculation policy did not draft on the request's lane, so this is the
                    # goodput with that lane, too.
                    evidence.observe_score(row, mapped.drafter, outcome.committed, seconds)
            elif drafter is None:
                evidence.observe_slot(row, None)
            else:
                without, without_s = 1.0 + outcome.accepted_free, outcome.seconds - outcome.draft_s
                evidence.observe_slot(row, drafter, outcome.committed, seconds, without, without_s)
                self._set_caught_up(request, row, lane)

    def observe_score(
        self, request: str, lane: str, tokens: float, seconds: float, slots: float = 1.0
    ) -> None:
        row = self._rows.get(request)
        if row is not None and lane in self._membership.lanes:
            self._likely = None
            drafter = self._membership.lanes[lane].drafter
            self._evidence.observe_score(row, drafter, tokens, seconds, slots)
            self._set_caught_up(request, row, lane)

    def forget(self, request: str) -> None:
        row = self._rows.drop(request)
        if row is not None:
            self._likely = None
            self._evidence.forget(row)
            self._caught_up[row] = 0.0
            self._mapping.pop(request, None)
            self._drafting.pop(request, None)

    @property
    def regret(self) -> float:
        names = [name for name in self._mapping if self._rows.get(name) is not None]
        if not names:
            return 0.0
        goodput = self._evidence.goodput(self._rows.of(names), self._draws, doubt=0.0)
        numbers = {
            name: self._evidence.number(lane.drafter)
            for name, lane in self._membership.lanes.items()
        }
        plain = self._evidence.number(PLAIN)
        best = goodput[:, [plain, *numbers.values()]].max(axis=1)
        chosen = [numbers.get(self._mapping[name] or "", plain) for name in names]
        reached = goodput[np.arange(len(names)), chosen]
        return float((1.0 - reached / best).mean())

    def export(self) -> Statistics:
        return self._evidence.export()

    def pool(self, others: Statistics) -> None:
        self._evidence.pool(others)

    def _set_caught_up(self, request: str, row: int, lane: str) -> None:
        """Records that the lane has processed all committed tokens of the request."""
        view = self._membership.requests.get(request)
        if view is not None:
            self._caught_up[row, self._column[lane]] = view.prompt_len + view.generated

    def _decide(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView]
    ) -> dict[str, str | None]:
        rows = self._rows_of(requests, lanes)
        goodput = self._goodput(rows)
        values = self._values(requests, lanes, goodput, rows)
        plain = (1 - self._params.reluctance) * goodput[:, self._evidence.number(PLAIN)]
        names = [request.name for request in requests]
        stay_factor = 1 + self._params.stay
        before = [self._mapping.get(name, PLAIN) for name in names]
        plain[np.array([lane is None for lane in before], np.bool_)] *= stay_factor
        here = self._columns(before)
        staying = np.flatnonzero(here != _NO_LANE)
        values[staying, here[staying]] *= stay_factor
        return LaneCapacity(lanes).match(names, values, plain, self._mapping)

    def _rows_of(self, requests: Sequence[RequestView], lanes: Sequence[LaneView]) -> Ints:
        """The requests' rows, with all arrays large enough for them and for these lanes."""
        names = [request.name for request in requests]
        rows, new = self._rows.known(names), []
        if rows is None:
            new = [name for name in names if self._rows.get(name) is None]
            rows = self._rows.of(names)
            self._evidence.reserve(len(self._rows))
            self._caught_up = with_rows(self._caught_up, len(self._rows))
            self._draws = with_rows(self._draws, len(self._rows))
        self._update_lanes([lane.name for lane in lanes])
        drafters = 1 + max((self._evidence.number(lane.drafter) for lane in lanes), default=0)
        missing = drafters - self._draws.shape[1]
        if missing > 0:
            drawn = self._rng.standard_normal((len(self._draws), missing))
            self._draws = np.hstack([self._draws, drawn])
        if new:
            drawn = self._rng.standard_normal((len(new), self._draws.shape[1]))
            self._draws[self._rows.of(new)] = drawn
        return rows

    def _update_lanes(self, lanes: list[str]) -> None:
        """Rearranges the columns of lanes to this order; those of lanes that have left are lost."""
        if lanes == self._lanes:
            return
        before, caught_up = self._lanes, self._caught_up
        self._lanes, self._caught_up = lanes, np.zeros((len(caught_up), len(lanes)))
        self._column = {lane: column for column, lane in enumerate(lanes)}
        for column, lane in enumerate(lanes):
            if lane in before:
                self._caught_up[:, column] = caught_up[:, before.index(lane)]

    def _values(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        goodput: Floats,
        rows: Ints,
    ) -> Floats:
        """[request, lane]: goodput over the tokens left, the time of a switch included."""
        context = np.array([request.context for request in requests], np.float64)
        unseen = np.maximum(0.0, context[:, None] - self._caught_up[rows])
        switch_s = unseen * np.array([lane.catch_up_s for lane in lanes])
        drafters = [self._evidence.number(lane.drafter) for lane in lanes]
        horizon = self._params.horizon_tokens
        left = np.array([tokens_left(request, horizon) for request in requests])
        return goodput_after_switch(goodput[:, drafters], switch_s, left[:, None])

    def _columns(self, lanes: Sequence[str | None]) -> Ints:
        """The lanes' columns, or _NO_LANE."""
        column = self._column
        return np.array([column.get(lane or "", _NO_LANE) for lane in lanes], np.int64)

    def _likely_lanes(self) -> dict[str, str | None]:
        names, lanes = list(self._rows), list(self._membership.lanes.values())
        rows = self._rows.of(names)
        optimistic = self._goodput(rows)
        drafters = optimistic.shape[1]
        own_slots = self._evidence.own_slots(rows)[:, :drafters]
        requests = self._evidence.effective_requests()[:drafters]
        bonus = 1 / np.sqrt(1 + own_slots) + 1 / np.sqrt(1 + requests)
        optimistic *= 1 + self._params.curiosity * bonus
        best = _best_other_lanes(
            optimistic,
            np.array([self._evidence.number(lane.drafter) for lane in lanes], np.int64),
            self._columns([self._drafting.get(name) for name in names]),
            self._caught_up[rows],
            np.array([lane.capacity - self._load[lane.name] for lane in lanes], np.int64),
        )
        return {
            name: None if lane == _NO_LANE else lanes[lane].name
            for name, lane in zip(names, best.tolist(), strict=True)
        }

    def _goodput(self, rows: Ints) -> Floats:
        """[request, drafter]"""
        return self._evidence.goodput(rows, self._draws, self._params.doubt)


@njit(cache=True)
def _best_other_lanes(
    optimistic: Floats, drafters: Ints, here: Ints, caught_up: Floats, spare: Ints
) -> Ints:
    """For each request the best lane with another drafter than that of its present lane, `here`.
    By lane: `drafters`, and `spare` places."""
    chosen = np.full(len(here), _NO_LANE)
    for request in range(len(here)):
        now = drafters[here[request]] if here[request] != _NO_LANE else _NO_LANE
        best = (-np.inf, 0.0, 0)
        for lane in range(len(drafters)):
            if drafters[lane] != now:
                value = (optimistic[request, drafters[lane]], caught_up[request, lane], spare[lane])
                if value > best:
                    best = value
                    chosen[request] = lane
    return chosen
