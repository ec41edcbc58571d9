"""Self-scheduling in the simulator: rank prompts run as requests, their answers are drawn.

When a batch is ranked depends on the arrivals alone, so its prompt is an additional arrival, which
every schedule here puts before all others (the paper's rank -∞). It costs the time of a prompt and
an answer of its length. The answer itself is drawn: predicted lengths of the stated τ-b.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from cluster.plan.simulator.workload import Arrival
from policies.protocols import Schedule
from policies.request import RequestView, RoundOutcome
from policies.scheduling.self_ranked import Form, RankBatch, RankQueue

PREFIX = "spindle:rank/"
"""How the names of rank prompts begin."""
ANSWER_TOKENS: dict[Form, int] = {"prefill_only": 1, "rank_only": 20, "length_only": 40}
"""The paper's §5.1; PrefillOnly reads the scores of one forward."""
_TASK_TOKENS = 100
_QUOTED_TOKENS = 60
"""Most tokens of a request in a rank prompt: policies/scheduling/rank_prompts.py quotes 200
characters."""
_TICK_S = 1e-6
"""Prompts follow a timeout by this time, so that it has passed."""


class RankedSchedule(Schedule, Protocol):
    """SelfRanked, or PredictedLengths below."""

    def due(self, now: float) -> RankBatch | None: ...

    def answer(self, batch: RankBatch, values: Sequence[float | None]) -> None: ...


class PredictedLengths:
    """Predicts lengths by rank prompts for a schedule that reads them."""

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
        """Sets them as Coordinator.predict does."""
        for request, value in zip(batch.requests, values, strict=True):
            if request in self._views:
                self._views[request].predicted_len = value

    def forget(self, request: str) -> None:
        self._views.pop(request, None)
        self._queue.forget(request)
        self._inner.forget(request)


class RankPrompting:
    """A schedule whose rank prompts are among its requests."""

    def __init__(self, inner: RankedSchedule, answers: Mapping[str, float]) -> None:
        """`answers`: predicted length by request."""
        self._inner = inner
        self._answers = answers
        self._due: list[RankBatch] = []
        self._prompts: dict[str, RankBatch | None] = {}

    def arrive(self, request: RequestView, now: float) -> None:
        if not request.name.startswith(PREFIX):
            self._inner.arrive(request, now)
            return
        self._collect_due(now)
        # None: all requests of its batch have already left.
        self._prompts[request.name] = self._due.pop(0) if self._due else None

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        self._collect_due(now)
        first = [view.name for view in requests if view.name in self._prompts]
        rest = [view for view in requests if view.name not in self._prompts]
        holding = [name for name in running if name not in self._prompts]
        left = max(0, slots - len(first))
        return [*first, *self._inner.pick(rest, holding, left, now)][:slots]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        of_users = [outcome for outcome in outcomes if outcome.request not in self._prompts]
        self._inner.observe(of_users, now)

    def forget(self, request: str) -> None:
        if request not in self._prompts:
            self._inner.forget(request)
            return
        batch = self._prompts.pop(request)
        if batch is not None:
            self._inner.answer(batch, [self._answers[name] for name in batch.requests])

    def _collect_due(self, now: float) -> None:
        while (batch := self._inner.due(now)) is not None:
            self._due.append(batch)


def with_prompts(
    arrivals: Sequence[Arrival], form: Form, batch: int, timeout_s: float, least: int
) -> list[Arrival]:
    """The arrivals, and a rank prompt where a batch is full or its oldest request has waited for
    the timeout; batches of fewer than `least` get none."""
    all_arrivals: list[Arrival] = []
    waiting: list[Arrival] = []

    def add_prompt(at_s: float) -> None:
        if len(waiting) >= least:
            quoted = sum(min(_QUOTED_TOKENS, request.prompt_tokens) for request in waiting)
            answer = ANSWER_TOKENS[form]
            name = f"{PREFIX}{len(all_arrivals)}"
            prompt = Arrival(name, at_s, _TASK_TOKENS + quoted, answer, answer, waiting[0].domain)
            all_arrivals.append(prompt)
        waiting.clear()

    for arrival in arrivals:
        if waiting and arrival.at_s > waiting[0].at_s + timeout_s:
            add_prompt(waiting[0].at_s + timeout_s + _TICK_S)
        all_arrivals.append(arrival)
        waiting.append(arrival)
        if len(waiting) == batch:
            add_prompt(arrival.at_s)
    if waiting:
        add_prompt(waiting[0].at_s + timeout_s + _TICK_S)
    return sorted(all_arrivals, key=lambda request: request.at_s)
