"""LAPS-SD: least attained service while a request's acceptance moves, SJF once it is stable.

Sections and equations are those of the paper (docs/policies/scheduling.md lists deviations).
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from policies.request import RequestView, RoundOutcome
from policies.scheduling.expected_length import by_arrival, expected_len


@dataclass(frozen=True, slots=True)
class LapsSdParams:
    """The paper gives the number of queues (4 to 6 in its Fig. 6); the other values are ours."""

    queues: int = 6
    """K."""
    first_queue_s: float = 0.5
    """S_1^up: the service after which a request leaves the first queue."""
    growth: float = 2.0
    """M: S_j^up = S_1^up·M^(j-1); the last queue has no upper end."""
    stable_rounds: int = 4
    """γ: consecutive rounds with drafts over which the acceptance rate must stand still."""
    stable_within: float = 0.1
    """δ: what it may move by over those rounds."""
    order_by: Literal["total", "remaining"] = "total"
    """Which estimated time orders the perceptible: of the whole request (the paper's) or of
    what is left of it."""
    pipelined: bool = False
    """Drafting overlaps with verification, so that a round costs the longer of the two."""
    switch_s: float = 0.0
    """Preempting and resuming a request costs this (a swap both ways, or a recompute) ..."""
    switch_s_per_token: float = 0.0
    """... and this for each of its committed tokens. Of the profile; zero is the paper's."""

    def __post_init__(self) -> None:
        if self.queues < 1 or self.first_queue_s <= 0 or self.growth <= 1:
            raise ValueError("queues must be at least 1, first_queue_s above 0, growth above 1")
        if self.stable_rounds < 2 or self.stable_within <= 0:
            raise ValueError("stability takes stable_rounds of at least 2 and stable_within > 0")


@dataclass(slots=True)
class _Progress:
    """What is known of one request."""

    view: RequestView
    rates: deque[float]
    """Cumulative acceptance rate (Fig. 3) behind each of the last γ rounds with drafts."""
    queue: int = 0
    attained_s: float = 0.0
    """E_i."""
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    token_s: float | None = None
    """Seconds per output token, predicted when the request became perceptible (eq. 6)."""
    placed: bool = False
    """It has been scheduled from the queue of its estimate: from now on, once running, it is not
    preempted. Before, its stabilising would only have pinned it to the slot that it was in."""


class LapsSd:
    def __init__(self, params: LapsSdParams = LapsSdParams()) -> None:
        self._params = params
        self._known: dict[str, _Progress] = {}

    def arrive(self, request: RequestView, now: float) -> None:
        """Lifecycle event 1: non-perceptible, in the first queue."""
        self._known[request.name] = _Progress(request, deque(maxlen=self._params.stable_rounds))

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        holding = set(running)
        order = sorted(requests, key=lambda view: self._preference(view, view.name in holding))
        for view in requests:
            known = self._known[view.name]
            known.placed = known.token_s is not None
        return [view.name for view in order[:slots]]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        for outcome in outcomes:
            self._learn(outcome)

    def _learn(self, outcome: RoundOutcome) -> None:
        """Lifecycle events 2 and 3: the request has been scheduled for a round; it may have
        attained its queue's service, or become stable."""
        request = self._known.get(outcome.request)
        if request is None:
            return
        request.attained_s += outcome.seconds
        request.rounds += 1
        request.drafted += outcome.drafted
        request.accepted += outcome.accepted
        request.draft_s += outcome.draft_s
        request.verify_s += outcome.verify_s
        if outcome.drafted:
            request.rates.append(request.accepted / request.drafted)
        if request.token_s is None:
            self._stabilise(request)
        if request.token_s is None:
            request.queue = max(request.queue, self._queue_of(request.attained_s))

    def forget(self, request: str) -> None:
        """Lifecycle event 4: completion."""
        self._known.pop(request, None)

    def queue(self, request: str) -> int:
        """0 is the first, Q_1."""
        return self._known[request].queue

    def estimated_s(self, request: str) -> float | None:
        """Predicted execution time, total or remaining; None while non-perceptible."""
        known = self._known[request]
        length = expected_len(known.view)
        if known.token_s is None or length is None:
            return None
        left = length if self._params.order_by == "total" else length - known.view.generated
        return left * known.token_s

    def _preference(self, view: RequestView, running: bool) -> tuple[bool, int, float, float, str]:
        """Section 4.3: by queue; in a queue the perceptible by SJF, then the others by arrival."""
        known = self._known[view.name]
        estimate = self.estimated_s(view.name)
        perceptible = estimate is not None
        kept = running and (known.placed if perceptible else self._not_worth_switching(known))
        return (
            not kept,
            known.queue,
            estimate if estimate is not None else math.inf,
            *by_arrival(view),
        )

    def _not_worth_switching(self, request: _Progress) -> bool:
        """Ours: who is nearly done with its queue's service is demoted without a switch. The
        others wait for less than the switch would have cost."""
        switch_s = self._params.switch_s + self._params.switch_s_per_token * request.view.context
        return switch_s > self._upper_s(request.queue) - request.attained_s

    def _stabilise(self, request: _Progress) -> None:
        """Section 4.3: predict acceptance and time once the rate stands still over γ rounds."""
        length = expected_len(request.view)
        rates = request.rates
        if length is None or len(rates) < self._params.stable_rounds:
            return
        if max(rates) - min(rates) >= self._params.stable_within:
            return
        # Eq. 6, with means over the rounds so far for n·T_SSM, T_LLM and n: drafts may vary.
        draft_s = request.draft_s / request.rounds
        verify_s = request.verify_s / request.rounds
        round_s = max(draft_s, verify_s) if self._params.pipelined else draft_s + verify_s
        acceptance = sum(rates) / len(rates)
        committed = acceptance * request.drafted / request.rounds + 1
        request.token_s = round_s / committed
        request.queue = self._queue_of(length * request.token_s)

    def _queue_of(self, seconds: float) -> int:
        """The queue whose range (S_j^down, S_j^up] holds this much service."""
        queue = 0
        while seconds > self._upper_s(queue):
            queue += 1
        return queue

    def _upper_s(self, queue: int) -> float:
        if queue == self._params.queues - 1:
            return math.inf
        return self._params.first_queue_s * self._params.growth**queue
