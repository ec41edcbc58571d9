"""Our own schedule: who would miss its SLO by waiting first, then the least time left.

Shortest remaining time is what minimises mean latency; a request's time left is its predicted
length times its own pace, for acceptance, too, decides it (LAPS-SD's point). A promise is worth a
slot only while it can be kept: who is late beyond rescue takes no slot from who is not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from policies.request import RequestView, RoundOutcome
from policies.scheduling.expected_length import by_arrival, expected_len

_DECAY = 0.999
"""Per round, of what is pooled over requests: it follows the load."""


@dataclass(frozen=True, slots=True)
class DefaultScheduleParams:
    urgent_s: float = 0.25
    """A request that can wait for no longer than this goes first."""
    hold_s: float = 0.5
    """A running request gives way only to one that is done earlier by more than this. More than
    a switch costs, for estimates are noisy (docs/policies/scheduling.md)."""
    token_s: float = 0.05
    """Seconds per output token, before any has been seen."""
    own_tokens: float = 4.0
    """Tokens behind which a request's own pace counts for as much as everyone's."""


@dataclass(slots=True)
class _Pace:
    """Slot time and tokens behind the first round, which is mostly prefill."""

    rounds: int = 0
    seconds: float = 0.0
    tokens: float = 0.0


class DefaultSchedule:
    def __init__(self, params: DefaultScheduleParams = DefaultScheduleParams()) -> None:
        self._params = params
        self._paces: dict[str, _Pace] = {}
        self._pooled = _Pace(seconds=params.token_s, tokens=1.0)

    def arrive(self, request: RequestView, now: float) -> None:
        self._paces[request.name] = _Pace()

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        holding = set(running)
        left = {view.name: self._time_left(view) for view in requests}
        predicted = [seconds for seconds in left.values() if seconds is not None]
        # Who has no prediction stands in the middle of those who have; without any: FCFS.
        typical = median(predicted) if predicted else 0.0

        def preference(view: RequestView) -> tuple[bool, float, float, str]:
            slack = self._slack(view, now)
            if 0 <= slack < self._params.urgent_s:
                return (False, slack, *by_arrival(view))
            seconds = left[view.name]
            seconds = typical if seconds is None else seconds
            if view.name in holding:
                seconds -= self._params.hold_s
            return (True, seconds, *by_arrival(view))

        return [view.name for view in sorted(requests, key=preference)[:slots]]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        paces, pooled = self._paces, self._pooled
        pooled_s, pooled_tokens = pooled.seconds, pooled.tokens
        for outcome in outcomes:
            pace = paces.get(outcome.request)
            if pace is None:
                continue
            pace.rounds += 1
            if pace.rounds > 1:
                seconds, tokens = outcome.seconds, outcome.committed
                pace.seconds += seconds
                pace.tokens += tokens
                pooled_s = pooled_s * _DECAY + seconds
                pooled_tokens = pooled_tokens * _DECAY + tokens
        pooled.seconds, pooled.tokens = pooled_s, pooled_tokens

    def forget(self, request: str) -> None:
        self._paces.pop(request, None)

    def _token_s(self, request: str) -> float:
        """Its own seconds per token, drawn towards everyone's while it has few."""
        own, prior = self._paces[request], self._params.own_tokens
        everyone = self._pooled.seconds / self._pooled.tokens
        return (own.seconds + prior * everyone) / (own.tokens + prior)

    def _time_left(self, view: RequestView) -> float | None:
        length = expected_len(view)
        return None if length is None else (length - view.generated) * self._token_s(view.name)

    def _slack(self, view: RequestView, now: float) -> float:
        """How long it can wait and still keep its promise at its own pace; negative: too late."""
        if view.first_token_s is None:
            promised = view.slo.ttft_s
            return math.inf if promised is None else view.arrival_s + promised - now
        if view.slo.tpot_s is None:
            return math.inf
        # Of unknown length: as much again as it has already, and at least one token.
        length = expected_len(view) or min(2.0 * view.generated, view.max_tokens)
        due_s = view.first_token_s + view.slo.tpot_s * (length - 1)
        return due_s - now - (length - view.generated) * self._token_s(view.name)
