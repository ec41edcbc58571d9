"""Our own selection: every lane's score, not only that of the lane that drafted.

Whenever a drafter catches up on committed tokens one sees which of them it would have drafted: an
unbiased score, for nothing (full information, as in HedgeSpec). So it need not explore requests
blindly, as LBSS does; and what one request teaches is a prior for the next, because most are too
short to pay for lessons of their own.
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
from policies.selection.switching import after_switch, tokens_left

_NOWHERE = -1
"""No lane, among lane numbers."""


@dataclass(frozen=True, slots=True)
class HedgeParams:
    prior_slots: float = 4.0
    """Slots of its own after which a request's evidence weighs as much as everyone's."""
    own_decay: float = 0.97
    """Of a request's evidence, per slot of its own: texts change as they go on."""
    pool_decay: float = 0.999
    """Of everyone's evidence under one load, per slot of anyone: requests and drafters change."""
    hold_slots: int = 4
    """Slots of a request, on average, between two decisions."""
    stay: float = 0.02
    """A move must promise so much more goodput: estimates are noisy."""
    reluctance: float = 0.1
    """Plain decoding must promise so much more than a lane: there the speculation policy may still
    decline to draft, but without a lane it cannot begin, and nobody learns that it should."""
    horizon_tokens: int = 128
    """A switch must pay within so many tokens."""
    doubt: float = 0.3
    """Relative error of a drafter's prior after its first slot, falling with the root of what
    requests have told of it. Each request takes priors wrong by a random draw of it, so that
    requests try different drafters while little is known, and agree once much is."""
    curiosity: float = 1.0
    """The same for that and a request's own evidence together where the next catch-up is chosen,
    which costs next to nothing: added, not drawn."""

    def __post_init__(self) -> None:
        if self.prior_slots <= 0 or self.horizon_tokens < 1 or self.hold_slots < 1:
            raise ValueError("prior_slots, horizon_tokens and hold_slots are above 0")
        if not (0 < self.own_decay <= 1 and 0 < self.pool_decay <= 1):
            raise ValueError("own_decay and pool_decay are above 0 and at most 1")
        if min(self.stay, self.doubt, self.curiosity) < 0 or not 0 <= self.reluctance < 1:
            raise ValueError("stay, doubt and curiosity are not negative, reluctance is below 1")


class Hedge:
    """In its arrays requests are rows, drafters the evidence's numbers, lanes in their order."""

    def __init__(self, params: HedgeParams = HedgeParams(), seed: int = 0) -> None:
        self._params = params
        self._rng = np.random.default_rng(seed)
        self._roster = Membership()
        self._rows = Rows()
        self._evidence = Evidence(params.prior_slots, params.own_decay, params.pool_decay)
        self._draws = np.zeros((0, 1))
        """[request, drafter]: in which direction the request doubts everyone's evidence."""
        self._lanes: list[str] = []
        self._column: dict[str, int] = {}
        """Of each lane."""
        self._caught_up = np.zeros((0, 0))
        """[request, lane]: committed tokens that the lane has, as far as we know."""
        self._mapping: dict[str, str | None] = {}
        self._drafting: dict[str, str | None] = {}
        """The lane that has drafted in each request's last round: a request may have a lane and
        not draft there."""
        self._load: Counter[str | None] = Counter()
        self._slots = 0
        """Ended since the last decision."""
        self._likely: dict[str, str | None] | None = None
        """Where each request will go next; None: must be thought over. A round of its own changes
        little in that: it tells of the drafter that it is at."""

    def assign(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView], now: float
    ) -> Mapping[str, str | None]:
        self._evidence.running(len(requests))
        changed = self._roster.changed(requests, lanes)
        if changed or self._slots >= self._params.hold_slots * len(requests):
            self._slots = 0
            self._likely = None
            self._mapping = self._decide(requests, lanes)
            self._load = Counter(self._mapping.values())
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        """The drafter most worth knowing more about: the best by an estimate that flatters what
        has been seen little, of this request and of all. Not the one that drafts now: its own
        rounds tell all. Of its lanes the one that has caught up furthest, or else has most to
        spare."""
        if self._likely is None:
            self._likely = self._think_over()
        return self._likely.get(request)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        drafting, evidence, slot = self._drafting, self._evidence, self._roster.slot
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
                evidence.slot(row, None)
            elif lane is None:
                evidence.slot(row, PLAIN, outcome.committed, seconds)
                mapped = self._roster.lanes.get(self._mapping.get(request) or "")
                if mapped is not None:
                    # It may draft there and does not: that lane, too, has brought it no more.
                    evidence.score(row, mapped.drafter, outcome.committed, seconds)
            elif drafter is None:
                evidence.slot(row, None)
            else:
                without, without_s = 1.0 + outcome.accepted_free, outcome.seconds - outcome.draft_s
                evidence.slot(row, drafter, outcome.committed, seconds, without, without_s)
                self._catch_up(request, row, lane)

    def observe_score(
        self, request: str, lane: str, tokens: float, seconds: float, slots: float = 1.0
    ) -> None:
        row = self._rows.get(request)
        if row is not None and lane in self._roster.lanes:
            self._likely = None
            drafter = self._roster.lanes[lane].drafter
            self._evidence.score(row, drafter, tokens, seconds, slots)
            self._catch_up(request, row, lane)

    def forget(self, request: str) -> None:
        row = self._rows.drop(request)
        if row is not None:
            self._likely = None
            self._evidence.forget(row)
            self._caught_up[row] = 0.0
            self._mapping.pop(request, None)
            self._drafting.pop(request, None)

    def export(self) -> Statistics:
        return self._evidence.export()

    def pool(self, others: Statistics) -> None:
        self._evidence.pool(others)

    def _catch_up(self, request: str, row: int, lane: str) -> None:
        """The lane has all that is committed of it."""
        view = self._roster.requests.get(request)
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
        loyal = 1 + self._params.stay
        before = [self._mapping.get(name, PLAIN) for name in names]
        plain[np.array([lane is None for lane in before], np.bool_)] *= loyal
        here = self._columns(before)
        staying = np.flatnonzero(here != _NOWHERE)
        values[staying, here[staying]] *= loyal
        return LaneCapacity(lanes).match(names, values, plain, self._mapping)

    def _rows_of(self, requests: Sequence[RequestView], lanes: Sequence[LaneView]) -> Ints:
        """Of all who are here, with a place for everything that may be learned of them."""
        names = [request.name for request in requests]
        rows, new = self._rows.known(names), []
        if rows is None:
            new = [name for name in names if self._rows.get(name) is None]
            rows = self._rows.of(names)
            self._evidence.reserve(len(self._rows))
            self._caught_up = with_rows(self._caught_up, len(self._rows))
            self._draws = with_rows(self._draws, len(self._rows))
        self._take_lanes([lane.name for lane in lanes])
        drafters = 1 + max((self._evidence.number(lane.drafter) for lane in lanes), default=0)
        missing = drafters - self._draws.shape[1]
        if missing > 0:
            drawn = self._rng.standard_normal((len(self._draws), missing))
            self._draws = np.hstack([self._draws, drawn])
        if new:
            drawn = self._rng.standard_normal((len(new), self._draws.shape[1]))
            self._draws[self._rows.of(new)] = drawn
        return rows

    def _take_lanes(self, lanes: list[str]) -> None:
        """Columns of what is known of lanes follow them."""
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
        """[request, lane]: goodput over the tokens that are left, switching included."""
        context = np.array([request.context for request in requests], np.float64)
        unseen = np.maximum(0.0, context[:, None] - self._caught_up[rows])
        switch_s = unseen * np.array([lane.catch_up_s for lane in lanes])
        drafters = [self._evidence.number(lane.drafter) for lane in lanes]
        horizon = self._params.horizon_tokens
        left = np.array([tokens_left(request, horizon) for request in requests])
        return after_switch(goodput[:, drafters], switch_s, left[:, None])

    def _columns(self, lanes: Sequence[str | None]) -> Ints:
        """Of lanes that are here."""
        column = self._column
        return np.array([column.get(lane or "", _NOWHERE) for lane in lanes], np.int64)

    def _think_over(self) -> dict[str, str | None]:
        names, lanes = list(self._rows), list(self._roster.lanes.values())
        rows = self._rows.of(names)
        hope = self._goodput(rows)
        drafters = hope.shape[1]
        own_slots = self._evidence.own_slots(rows)[:, :drafters]
        news = self._evidence.news()[:drafters]
        hope *= 1 + self._params.curiosity * (1 / np.sqrt(1 + own_slots) + 1 / np.sqrt(1 + news))
        best = _most_hopeful(
            hope,
            np.array([self._evidence.number(lane.drafter) for lane in lanes], np.int64),
            self._columns([self._drafting.get(name) for name in names]),
            self._caught_up[rows],
            np.array([lane.capacity - self._load[lane.name] for lane in lanes], np.int64),
        )
        return {
            name: None if lane == _NOWHERE else lanes[lane].name
            for name, lane in zip(names, best.tolist(), strict=True)
        }

    def _goodput(self, rows: Ints) -> Floats:
        """[request, drafter]"""
        return self._evidence.goodput(rows, self._draws, self._params.doubt)


@njit(cache=True)
def _most_hopeful(hope: Floats, drafters: Ints, here: Ints, caught_up: Floats, spare: Ints) -> Ints:
    """The lane of each request; `drafters` and `spare` places by lane, `here` its lane now."""
    chosen = np.full(len(here), _NOWHERE)
    for request in range(len(here)):
        now = drafters[here[request]] if here[request] != _NOWHERE else _NOWHERE
        best = (-np.inf, 0.0, 0)
        for lane in range(len(drafters)):
            if drafters[lane] != now:
                worth = (hope[request, drafters[lane]], caught_up[request, lane], spare[lane])
                if worth > best:
                    best = worth
                    chosen[request] = lane
    return chosen
