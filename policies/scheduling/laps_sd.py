"""LAPS-SD: least attained service while a request's acceptance rate varies, SJF once it is stable.

Sections and equations are the paper's; docs/policies/scheduling.md lists deviations.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from policies.cost import NO_SWITCH, SwitchCost
from policies.request import RequestView, RoundOutcome, by_arrival, expected_len


@dataclass(frozen=True, slots=True)
class LapsSdParams:
    """The paper gives only the number of queues (4 to 6 in its Fig. 6); the other values are
    ours."""

    queues: int = 6
    """K."""
    first_queue_s: float = 0.5
    """S_1^up: the service after which a request leaves the first queue."""
    growth: float = 2.0
    """M: S_j^up = S_1^up·M^(j-1); the last queue has no upper end."""
    stable_rounds: int = 4
    """γ: consecutive rounds with drafts over which the acceptance rate must be stable."""
    stable_within: float = 0.1
    """δ: the range within which it must stay over those rounds."""

    def __post_init__(self) -> None:
        if not (self.queues >= 1 and self.first_queue_s > 0 and self.growth > 1):
            raise ValueError("queues must be at least 1, first_queue_s above 0, growth above 1")
        if not (self.stable_rounds >= 2 and self.stable_within > 0):
            raise ValueError("stability takes stable_rounds of at least 2 and stable_within > 0")


@dataclass(slots=True)
class _Progress:
    """The state of one request."""

    view: RequestView
    rates: deque[float]
    """Cumulative acceptance rate (Fig. 3) after each of the last γ rounds with drafts."""
    queue: int = 0
    attained_s: float = 0.0
    """E_i."""
    generating: bool = False
    """Whether it has an output token: until then the prompt is read."""
    rounds: int = 0
    """Like the sums below, without those that read the prompt."""
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    token_s: float | None = None
    """Seconds per output token, predicted when the request became perceptible (eq. 6)."""
    placed: bool = False
    """Whether the request has been scheduled by its estimate; from then on it is not preempted
    while it runs. Not earlier: a request that became stable while running would keep its slot
    whatever its estimate."""


class LapsSd:
    def __init__(
        self, params: LapsSdParams = LapsSdParams(), switch: SwitchCost = NO_SWITCH
    ) -> None:
        """`switch`: the measured cost of a preemption."""
        self._params = params
        self._switch = switch
        self._progress: dict[str, _Progress] = {}

    def arrive(self, request: RequestView, now: float) -> None:
        """Lifecycle event 1: non-perceptible, in the first queue."""
        self._progress[request.name] = _Progress(request, deque(maxlen=self._params.stable_rounds))

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        running_names = set(running)
        order = sorted(
            requests, key=lambda view: self._preference(view, view.name in running_names)
        )
        for view in requests:
            progress = self._progress[view.name]
            progress.placed = progress.token_s is not None
        return [view.name for view in order[:slots]]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        for outcome in outcomes:
            self._learn(outcome)

    def _learn(self, outcome: RoundOutcome) -> None:
        """Lifecycle events 2 and 3: after a round the request may have exceeded its queue's
        service, or become stable."""
        progress = self._progress.get(outcome.request)
        if progress is None:
            return
        progress.attained_s += outcome.seconds
        if outcome.drafted or progress.generating:
            progress.rounds += 1
            progress.drafted += outcome.drafted
            progress.accepted += outcome.accepted
            progress.draft_s += outcome.draft_s
            progress.verify_s += outcome.verify_s
        if outcome.drafted:
            progress.rates.append(progress.accepted / progress.drafted)
        progress.generating = progress.generating or outcome.committed > 0
        if progress.token_s is None:
            self._predict_if_stable(progress)
        if progress.token_s is None:
            progress.queue = max(progress.queue, self._queue_of(progress.attained_s))

    def forget(self, request: str) -> None:
        """Lifecycle event 4: completion."""
        self._progress.pop(request, None)

    def queue(self, request: str) -> int:
        """The index of the request's queue; 0 is Q_1."""
        return self._progress[request].queue

    def estimated_s(self, request: str) -> float | None:
        """Predicted execution time of the whole request; None while non-perceptible."""
        progress = self._progress[request]
        length = expected_len(progress.view)
        if progress.token_s is None or length is None:
            return None
        return length * progress.token_s

    def _preference(self, view: RequestView, running: bool) -> tuple[bool, int, float, float, str]:
        """Section 4.3: by queue; within a queue perceptible requests by SJF, then the others by
        arrival."""
        progress = self._progress[view.name]
        estimate = self.estimated_s(view.name)
        perceptible = estimate is not None
        kept = running and (progress.placed if perceptible else self._near_demotion(progress))
        return (
            not kept,
            progress.queue,
            estimate if estimate is not None else math.inf,
            *by_arrival(view),
        )

    def _near_demotion(self, progress: _Progress) -> bool:
        """Ours, not the paper's: a request is not preempted where a switch would cost more than the
        service that it has left in its queue, after which it is demoted anyway."""
        switch_s = self._switch.predict(progress.view.context)
        return switch_s > self._upper_s(progress.queue) - progress.attained_s

    def _predict_if_stable(self, progress: _Progress) -> None:
        """Section 4.3: predicts acceptance and time once the rate is stable over γ rounds."""
        length = expected_len(progress.view)
        rates = progress.rates
        if length is None or len(rates) < self._params.stable_rounds:
            return
        if max(rates) - min(rates) >= self._params.stable_within:
            return
        # Eq. 6. As drafts may vary, n·T_SSM, T_LLM and n are means over the rounds so far.
        round_s = (progress.draft_s + progress.verify_s) / progress.rounds
        acceptance = sum(rates) / len(rates)
        committed = acceptance * progress.drafted / progress.rounds + 1
        progress.token_s = round_s / committed
        progress.queue = self._queue_of(length * progress.token_s)

    def _queue_of(self, seconds: float) -> int:
        """The queue whose range (S_j^down, S_j^up] contains this service time."""
        queue = 0
        while seconds > self._upper_s(queue):
            queue += 1
        return queue

    def _upper_s(self, queue: int) -> float:
        if queue == self._params.queues - 1:
            return math.inf
        return self._params.first_queue_s * self._params.growth**queue
