"""Records what the metrics need of a run beyond the simulator's report."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from actors.coordinator.events import Event, Left, Verified
from lab.papers.rank_prompts import PREFIX
from policies.protocols import Candidates, DraftPlan, LaneBatch, Mask, RoundContext, Speculation
from policies.request import RoundOutcome
from policies.scheduling.laps_sd import LapsSd

Result = TypeVar("Result")


class RunComplete(Exception):
    """All that the cell's metrics need has happened."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of the verifier."""

    at_s: float
    """When it ended."""
    requests: int
    drafted: int


@dataclass(slots=True)
class RunObserver:
    """Observes the coordinator's events, and may end the run."""

    horizon_s: float | None = None
    """The run ends after this time, once `answers` requests have finished; None: at its own end."""
    answers: int = 0
    keep_rounds: bool = False
    forwards: list[Forward] = field(default_factory=list)
    returned_s: dict[str, float] = field(default_factory=dict)
    """When each answer ended, without rank prompts'."""
    decoding_rounds: int = 0
    """Rounds of all requests; a request's first round is its prefill."""
    drafted_rounds: int = 0
    acceptance_sum: float = 0.0
    """Sum over rounds with drafts of accepted ÷ verified draft tokens."""
    rounds: dict[str, list[RoundOutcome]] = field(default_factory=dict)
    """By request, with `keep_rounds`."""
    estimate_errors: list[float] = field(default_factory=list)
    selection_s: float = 0.0
    """CPU time of the speculation policy."""
    ended: bool = False
    _prefilled: set[str] = field(default_factory=set)

    def observe(self, event: Event) -> None:
        """Raises RunComplete."""
        if isinstance(event, Verified):
            self._verified(event)
        elif isinstance(event, Left) and not event.view.name.startswith(PREFIX):
            self.returned_s[event.view.name] = event.at_s
        if (
            self.horizon_s is not None
            and event.at_s > self.horizon_s
            and len(self.returned_s) >= self.answers
        ):
            self.ended = True
            raise RunComplete

    def _verified(self, event: Verified) -> None:
        drafted = sum(outcome.drafted for outcome in event.outcomes)
        self.forwards.append(Forward(event.at_s, len(event.outcomes), drafted))
        for outcome in event.outcomes:
            if outcome.request not in self._prefilled:
                self._prefilled.add(outcome.request)
                continue
            self.decoding_rounds += 1
            if outcome.drafted:
                self.drafted_rounds += 1
                self.acceptance_sum += outcome.accepted / outcome.drafted
            if self.keep_rounds:
                self.rounds.setdefault(outcome.request, []).append(outcome)


class TimedSpeculation:
    """Measures the CPU time of a speculation policy."""

    def __init__(self, inner: Speculation, observer: RunObserver) -> None:
        self._inner = inner
        self._observer = observer

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        return self._timed(lambda: self._inner.plan(batches, context, now))

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        return self._timed(lambda: self._inner.select(candidates, context, now))

    def _timed(self, work: Callable[[], Result]) -> Result:
        started = time.process_time()
        result = work()
        self._observer.selection_s += time.process_time() - started
        return result


class EstimateErrors:
    """Compares LAPS-SD's first estimate of each request with the time that it took (Fig. 7)."""

    def __init__(self, inner: LapsSd, observer: RunObserver) -> None:
        self._inner = inner
        self._observer = observer
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
            self._observer.estimate_errors.append(abs(estimated - took) / took)
