"""Our own schedule: first requests that would miss their SLO by waiting, then the least time left.

Shortest remaining time first minimises mean latency. The time left is the rest of the predicted
length times the request's own seconds per token, which depend on acceptance (as LAPS-SD argues). A
request that can no longer meet its SLO takes no slot from one that can.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from policies.request import RequestView, RoundOutcome, by_arrival, expected_len

_URGENT_S = 0.25
"""A request whose slack is smaller than this goes first."""
_HOLD_S = 0.5
"""A running request is preempted only for one that will finish earlier by more than this. It is
more than a switch costs, because estimates are noisy (docs/policies/scheduling.md)."""
_TOKEN_S = 0.05
"""Seconds per output token before any observation."""
_OWN_TOKENS = 4.0
"""Tokens after which a request's own pace weighs as much as the pooled one."""
_DECAY = 0.999
"""Decay of the pooled pace per request and round, so that it follows the load."""


@dataclass(slots=True)
class _Pace:
    """Slot time and tokens of a request's rounds, except its first, which is mostly prefill."""

    rounds: int = 0
    seconds: float = 0.0
    tokens: float = 0.0


class DefaultSchedule:
    def __init__(self) -> None:
        self._paces: dict[str, _Pace] = {}
        self._pooled = _Pace(seconds=_TOKEN_S, tokens=1.0)

    def arrive(self, request: RequestView, now: float) -> None:
        self._paces[request.name] = _Pace()

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        running_names = set(running)
        left = {view.name: self._time_left(view) for view in requests}
        predicted = [seconds for seconds in left.values() if seconds is not None]
        # Requests without a prediction get the median of the others; if none has one, it is FCFS.
        typical = median(predicted) if predicted else 0.0

        def preference(view: RequestView) -> tuple[bool, float, float, str]:
            slack = self._slack(view, now)
            if 0 <= slack < _URGENT_S:
                return (False, slack, *by_arrival(view))
            seconds = left[view.name]
            seconds = typical if seconds is None else seconds
            if view.name in running_names:
                seconds -= _HOLD_S
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
        """The request's seconds per token, shrunk towards the pooled ones while it has few
        tokens."""
        own, prior = self._paces[request], _OWN_TOKENS
        pooled_token_s = self._pooled.seconds / self._pooled.tokens
        return (own.seconds + prior * pooled_token_s) / (own.tokens + prior)

    def _time_left(self, view: RequestView) -> float | None:
        length = expected_len(view)
        return None if length is None else (length - view.generated) * self._token_s(view.name)

    def _slack(self, view: RequestView, now: float) -> float:
        """How long the request can wait and still meet its SLO at its own pace; negative: no
        longer at all."""
        if view.first_token_s is None:
            ttft_s = view.slo.ttft_s
            return math.inf if ttft_s is None else view.arrival_s + ttft_s - now
        if view.slo.tpot_s is None:
            return math.inf
        # Without a predicted length it is taken to become twice as long as it is now.
        length = expected_len(view) or min(2.0 * view.generated, view.max_tokens)
        due_s = view.first_token_s + view.slo.tpot_s * (length - 1)
        return due_s - now - (length - view.generated) * self._token_s(view.name)
