"""What the metrics need of a run beyond the simulator's report."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from actors.coordinator.events import Event, Left, Verified
from benchmarks.papers.asking import PREFIX
from policies.protocols import Candidates, DraftPlan, LaneBatch, Mask, RoundContext, Speculation
from policies.request import RoundOutcome
from policies.scheduling.laps_sd import LapsSd

Made = TypeVar("Made")


class Enough(Exception):
    """All that the cell's metrics look at has happened."""


@dataclass(frozen=True, slots=True)
class Forward:
    at_s: float
    """When it ended."""
    requests: int
    drafted: int


@dataclass(slots=True)
class Watch:
    horizon_s: float | None = None
    answers: int = 0
    """A run may end behind this time, once it has given so many answers."""
    keep_rounds: bool = False
    forwards: list[Forward] = field(default_factory=list)
    finished_s: list[float] = field(default_factory=list)
    """Of users' requests."""
    decoding_rounds: int = 0
    """Of all requests together; a request's first round is its prefill."""
    drafted_rounds: int = 0
    acceptance_sum: float = 0.0
    """Of accepted ÷ verified draft tokens, over rounds with drafts."""
    rounds: dict[str, list[RoundOutcome]] = field(default_factory=dict)
    """By request, if kept."""
    estimate_errors: list[float] = field(default_factory=list)
    selection_s: float = 0.0
    """CPU time of choosing what to draft and what to verify."""
    ended: bool = False
    _began: set[str] = field(default_factory=set)

    def observe(self, event: Event) -> None:
        """Raises Enough."""
        if isinstance(event, Verified):
            self._verified(event)
        elif isinstance(event, Left) and not event.view.name.startswith(PREFIX):
            self.finished_s.append(event.at_s)
        if (
            self.horizon_s is not None
            and event.at_s > self.horizon_s
            and len(self.finished_s) >= self.answers
        ):
            self.ended = True
            raise Enough

    def _verified(self, event: Verified) -> None:
        drafted = sum(outcome.drafted for outcome in event.outcomes)
        self.forwards.append(Forward(event.at_s, len(event.outcomes), drafted))
        for outcome in event.outcomes:
            if outcome.request not in self._began:
                self._began.add(outcome.request)
                continue
            self.decoding_rounds += 1
            if outcome.drafted:
                self.drafted_rounds += 1
                self.acceptance_sum += outcome.accepted / outcome.drafted
            if self.keep_rounds:
                self.rounds.setdefault(outcome.request, []).append(outcome)


class Timed:
    """A speculation policy whose CPU time is taken."""

    def __init__(self, inner: Speculation, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch
        self.observe = inner.observe
        self.observe_read = inner.observe_read
        self.forget = inner.forget

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        return self._taking(lambda: self._inner.plan(batches, context, now))

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        return self._taking(lambda: self._inner.select(candidates, context, now))

    def _taking(self, work: Callable[[], Made]) -> Made:
        begun = time.process_time()
        made = work()
        self._watch.selection_s += time.process_time() - begun
        return made


class Estimates:
    """LAPS-SD whose first estimate of each request is compared with what it took (Fig. 7)."""

    def __init__(self, inner: LapsSd, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch
        self._estimated: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self.arrive = inner.arrive
        self.pick = inner.pick

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        for outcome in outcomes:
            self._inner.observe([outcome], now)
            request = outcome.request
            self._took[request] = self._took.get(request, 0.0) + outcome.seconds
            estimate = self._inner.estimated_s(request)
            if estimate is not None:
                self._estimated.setdefault(request, estimate)

    def forget(self, request: str) -> None:
        self._inner.forget(request)
        took, estimated = self._took.pop(request, 0.0), self._estimated.pop(request, None)
        if took and estimated is not None:
            self._watch.estimate_errors.append(abs(estimated - took) / took)
