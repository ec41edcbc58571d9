"""Our own selection: the lane on which a request's next rounds are expected to be fastest, by the
acceptance estimates that it shares with the planner.

When a drafter catches up on committed tokens, it shows which of them it would have drafted: an
unbiased result at no cost (full-information feedback, as in HedgeSpec). So hedge need not explore
blindly, as LBSS does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numba import njit

from policies.estimates.acceptance import Tables, estimate
from policies.protocols import RoundContext
from policies.request import LaneView, RequestView, RoundOutcome
from policies.rows import Floats, Ints
from policies.selection.lane_capacity import LaneCapacity
from policies.selection.membership import Membership

_DEEPEST = 8
"""The largest draft depth for which a lane is valued until the speculation policy has shown how
deep it drafts."""


HOLD_SLOTS = 4
"""Slots per request, on average, between two decisions."""
_STAY = 0.02
"""By which share the estimated goodput of another lane must be larger for a switch, because
estimates are noisy."""
_HORIZON_TOKENS = 128
"""A switch must pay within so many tokens."""


class Hedge:
    def __init__(self) -> None:
        self._membership = Membership()
        self._context: RoundContext | None = None
        """The context of the last call of `assign`."""
        self._mapping: dict[str, str | None] = {}
        self._load: Counter[str | None] = Counter()
        self._slots = 0
        """Slots that have ended since the last decision."""
        self._deepest = 0
        """The deepest draft so far; 0: none yet."""
        self._undrafted: dict[str, int] = {}
        """Rounds since each request's last draft on its lane."""
        self._likely: dict[str, str | None] | None = None
        """The next lane of each request; None: to be computed again. Kept between decisions while
        the same requests draft, to save time."""

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        self._context = context
        changed = self._membership.changed(requests, lanes)
        if changed or self._slots >= HOLD_SLOTS * len(requests):
            self._slots = 0
            self._likely = None
            self._mapping = self._decide(requests, lanes, context)
            self._load = Counter(self._mapping.values())
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        """The drafter with the largest estimate over the root of its evidence on the request, so
        that each is tried; not the one that drafts now, whose drafts are evidence anyway. Among its
        lanes the one that has read most, then the one with the most free places."""
        if self._likely is None:
            self._likely = self._likely_lanes()
        return self._likely.get(request)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            request = outcome.request
            if request in self._mapping:
                self._slots += 1
                self._deepest = max(self._deepest, outcome.depth)
                before = self._undrafted.get(request)
                undrafted = 0 if outcome.lane is not None else (before or 0) + 1
                self._undrafted[request] = undrafted
                if (before == 0) != (undrafted == 0):
                    self._likely = None

    def forget(self, request: str) -> None:
        self._membership.forget(request)
        self._mapping.pop(request, None)
        self._undrafted.pop(request, None)
        self._likely = None

    def _decide(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView], context: RoundContext
    ) -> dict[str, str | None]:
        names, before = [request.name for request in requests], self._mapping
        others = max(0, context.active - len(requests))
        goodput, plain = _goodput(requests, lanes, context, self._deepest or _DEEPEST, others)
        switch_s = _unread(requests, lanes) * np.array([lane.catch_up_s for lane in lanes])
        left = [tokens_left(request) for request in requests]
        values = goodput_after_switch(goodput, switch_s, np.array(left)[:, None])
        stay_factor = 1 + _STAY
        column = {lane.name: number for number, lane in enumerate(lanes)}
        for row, name in enumerate(names):
            here = column.get(before.get(name) or "")
            if here is not None:
                # Where the speculation policy declines to draft, the lane is worth no more than
                # plain decoding.
                declined = self._undrafted.get(name, 0) >= HOLD_SLOTS
                values[row, here] = plain[row] if declined else values[row, here] * stay_factor
            elif name in before and before[name] is None:
                plain[row] *= stay_factor
        mapping = LaneCapacity(lanes).match(names, values, plain, before)
        for name, lane in mapping.items():
            if lane != before.get(name):
                self._undrafted.pop(name, None)
        return mapping

    def _likely_lanes(self) -> dict[str, str | None]:
        here, lanes = self._membership.requests, list(self._membership.lanes.values())
        requests = [request for name, request in here.items() if name in self._mapping]
        if self._context is None or not requests or not lanes:
            return {}
        acceptance = self._context.acceptance
        names = [request.name for request in requests]
        numbers = acceptance.numbers([lane.name for lane in lanes])
        goodput, _ = _goodput(requests, lanes, self._context, self._deepest or _DEEPEST)
        goodput /= np.sqrt(1.0 + acceptance.drafts(acceptance.rows(names), numbers))
        column = {lane.name: number for number, lane in enumerate(lanes)}
        drafting = [
            column.get(self._mapping.get(name) or "", -1) if self._undrafted.get(name) == 0 else -1
            for name in names
        ]
        best = _best_other_lanes(
            goodput,
            numbers,
            np.array(drafting, np.int64),
            _unread(requests, lanes),
            np.array([lane.capacity - self._load[lane.name] for lane in lanes], np.int64),
        )
        return {
            name: None if lane < 0 else lanes[lane].name
            for name, lane in zip(names, best.tolist(), strict=True)
        }


def _unread(requests: Sequence[RequestView], lanes: Sequence[LaneView]) -> Floats:
    """[request, lane]: committed tokens that the lane's drafter has not processed."""
    unread = [[one.context - one.read.get(lane.name, 0) for lane in lanes] for one in requests]
    return np.array(unread, np.float64).reshape(len(requests), len(lanes))


def _goodput(
    requests: Sequence[RequestView],
    lanes: Sequence[LaneView],
    context: RoundContext,
    deepest: int,
    others: int = 0,
) -> tuple[Floats, Floats]:
    """[request, lane]: expected tokens per second at the best draft depth up to `deepest`; and of
    plain decoding. Rounds are those in which all requests draft so deep, spread evenly over the
    lanes, and `others` decode plainly."""
    count, tokens = len(requests), sum(request.context for request in requests)
    wait_s, extra_s = context.waiting_s, context.handling_s
    acceptance = context.acceptance
    rows = acceptance.rows([request.name for request in requests])
    verify_s = np.array(
        [
            context.verify.predict(tokens, count * (1 + depth) + others + context.prefill_tokens)
            for depth in range(deepest + 1)
        ]
    )
    seconds = np.empty((len(lanes), deepest))
    for number, lane in enumerate(lanes):
        step = context.draft.get(lane.name)
        step_s = step.predict(tokens / len(lanes), count / len(lanes)) if step else 0.0
        drafting_s = context.call_s.get(lane.name, 0.0) + step_s * np.arange(1, deepest + 1)
        seconds[number] = verify_s[1:] + drafting_s + wait_s + extra_s
    # Where free drafters draft anyway, a round without a lane has the overhead of drafts as well.
    plain_s = verify_s[0] + wait_s + (extra_s if acceptance.tables.free.any() else 0.0)
    speeds = _best_speeds(
        acceptance.tables,
        rows,
        acceptance.numbers([lane.name for lane in lanes]),
        seconds,
        plain_s,
    )
    return speeds[:, :-1], speeds[:, -1]


@njit(cache=True)
def _best_speeds(
    tables: Tables, rows: Ints, numbers: Ints, seconds: Floats, plain_s: float
) -> Floats:
    """[request, lane]: tokens per second at the best depth; the last column has plain decoding.
    `seconds`: of rounds by [lane, depth - 1]."""
    deepest = seconds.shape[1]
    speeds = np.empty((len(rows), len(numbers) + 1))
    for place, row in enumerate(rows):
        free_gain = 0.0
        for number in range(len(tables.free)):
            if tables.free[number]:
                level, later, _ = estimate(tables, row, number)
                gain = 0.0
                for _ in range(deepest):
                    gain += level
                    level *= later
                free_gain = max(free_gain, gain)
        speeds[place, -1] = (1.0 + free_gain) / plain_s
        for lane, number in enumerate(numbers):
            level, later, added = estimate(tables, row, number)
            gain, best = free_gain, 0.0
            for depth in range(deepest):
                gain += added * level
                level *= later
                best = max(best, (1.0 + gain) / seconds[lane, depth])
            speeds[place, lane] = best
    return speeds


@njit(cache=True)
def _best_other_lanes(
    values: Floats, drafters: Ints, here: Ints, unread: Floats, spare: Ints
) -> Ints:
    """For each request the best lane with another drafter than that of its present lane, `here`;
    -1: none. By lane: `drafters`, and `spare` places."""
    chosen = np.full(len(here), -1)
    for request in range(len(here)):
        now = drafters[here[request]] if here[request] >= 0 else -1
        best = (-np.inf, 0.0, 0)
        for lane in range(len(drafters)):
            if drafters[lane] != now:
                value = (values[request, lane], -unread[request, lane], spare[lane])
                if value > best:
                    best = value
                    chosen[request] = lane
    return chosen


Number = TypeVar("Number", float, Floats)


def tokens_left(request: RequestView) -> float:
    """Output tokens over which a switch can pay: the rest of the predicted length, or of
    `max_tokens` where there is no prediction, at most `_HORIZON_TOKENS`."""
    length = request.predicted_len if request.predicted_len is not None else request.max_tokens
    return max(1.0, min(length - request.generated, _HORIZON_TOKENS))


def goodput_after_switch(goodput: Number, switch_s: Number, tokens: Number) -> Number:
    """Tokens per second over the next `tokens`, the time of the switch included."""
    return goodput * tokens / (tokens + goodput * switch_s)
