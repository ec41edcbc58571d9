"""Self-scheduling in the simulator: the rank prompts run, what they answer is drawn.

When a batch is asked about follows from the arrivals alone, so its prompt is one more arrival,
which every schedule here puts before all others (the paper's rank -∞). It costs what a prompt and
an answer of its length cost. What it says is drawn: predictions of the stated τ-b.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from benchmarks.simulator.workload import Arrival
from policies.protocols import Schedule
from policies.request import RequestView, RoundOutcome
from policies.scheduling.rank_queue import Form, RankBatch, RankQueue

PREFIX = "spindle:rank/"
ANSWER_TOKENS: dict[Form, int] = {"prefill_only": 1, "rank_only": 20, "length_only": 40}
"""§5.1 of the paper; PrefillOnly reads the scores of one forward."""
_TASK_TOKENS = 100
_SHOWN_TOKENS = 60
"""Of a prompt at most, as policies/scheduling/rank_prompts.py cuts a request to 200 characters."""
_TICK_S = 1e-6
"""A timeout is noticed just behind its moment."""


class Asks(Schedule, Protocol):
    """SelfRanked, or WithLengths below."""

    def due(self, now: float) -> RankBatch | None: ...

    def answer(self, batch: RankBatch, values: Sequence[float | None]) -> None: ...


class WithLengths:
    """A schedule that reads predicted lengths, and asks for them."""

    def __init__(self, inner: Schedule) -> None:
        self._inner = inner
        self._queue = RankQueue("length_only")
        self._views: dict[str, RequestView] = {}
        self.pick = inner.pick
        self.observe = inner.observe
        self.due = self._queue.due

    def arrive(self, request: RequestView, now: float) -> None:
        self._views[request.name] = request
        self._queue.arrive(request.name, now)
        self._inner.arrive(request, now)

    def answer(self, batch: RankBatch, values: Sequence[float | None]) -> None:
        """As Coordinator.predict."""
        for request, value in zip(batch.requests, values, strict=True):
            if request in self._views:
                self._views[request].predicted_len = value

    def forget(self, request: str) -> None:
        self._views.pop(request, None)
        self._queue.forget(request)
        self._inner.forget(request)


class Asking:
    """A schedule whose rank prompts are among its requests."""

    def __init__(self, inner: Asks, answers: Mapping[str, float]) -> None:
        """`answers`: by request, what the target will say of its length."""
        self._inner = inner
        self._answers = answers
        self._due: list[RankBatch] = []
        self._asked: dict[str, RankBatch | None] = {}

    def arrive(self, request: RequestView, now: float) -> None:
        if not request.name.startswith(PREFIX):
            self._inner.arrive(request, now)
            return
        self._look(now)
        # None: those that it would have asked about have already left.
        self._asked[request.name] = self._due.pop(0) if self._due else None

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        self._look(now)
        first = [view.name for view in requests if view.name in self._asked]
        rest = [view for view in requests if view.name not in self._asked]
        holding = [name for name in running if name not in self._asked]
        left = max(0, slots - len(first))
        return [*first, *self._inner.pick(rest, holding, left, now)][:slots]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        told = [outcome for outcome in outcomes if outcome.request not in self._asked]
        self._inner.observe(told, now)

    def forget(self, request: str) -> None:
        if request not in self._asked:
            self._inner.forget(request)
            return
        batch = self._asked.pop(request)
        if batch is not None:
            self._inner.answer(batch, [self._answers[name] for name in batch.requests])

    def _look(self, now: float) -> None:
        while (batch := self._inner.due(now)) is not None:
            self._due.append(batch)


def with_prompts(
    arrivals: Sequence[Arrival], form: Form, batch: int, timeout_s: float, least: int
) -> list[Arrival]:
    """The arrivals, and a rank prompt where a batch is full or its oldest has waited enough;
    batches of fewer than `least` are not asked about."""
    all_arrivals: list[Arrival] = []
    waiting: list[Arrival] = []

    def ask(at_s: float) -> None:
        if len(waiting) >= least:
            shown = sum(min(_SHOWN_TOKENS, one.prompt_tokens) for one in waiting)
            answer = ANSWER_TOKENS[form]
            name = f"{PREFIX}{len(all_arrivals)}"
            prompt = Arrival(name, at_s, _TASK_TOKENS + shown, answer, answer, waiting[0].domain)
            all_arrivals.append(prompt)
        waiting.clear()

    for arrival in arrivals:
        if waiting and arrival.at_s > waiting[0].at_s + timeout_s:
            ask(waiting[0].at_s + timeout_s + _TICK_S)
        all_arrivals.append(arrival)
        waiting.append(arrival)
        if len(waiting) == batch:
            ask(arrival.at_s)
    if waiting:
        ask(waiting[0].at_s + timeout_s + _TICK_S)
    return sorted(all_arrivals, key=lambda one: one.at_s)
