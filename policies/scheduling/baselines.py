"""Baseline schedules: FCFS, LP-SJF and EDF, which sort by a key, and LAS, which counts service."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policies.request import RequestView, RoundOutcome
from policies.scheduling.expected_length import by_arrival, expected_len

Key = Callable[[RequestView, bool], float]
"""The sort key of a request, given whether it is running; the smallest comes first."""


class SortedSchedule:
    """Picks requests by a key of their own attributes, equals by arrival; keeps no state."""

    def __init__(self, key: Key) -> None:
        self._key = key

    def arrive(self, request: RequestView, now: float) -> None:
        pass

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        running_names = set(running)
        order = sorted(
            requests,
            key=lambda view: (self._key(view, view.name in running_names), *by_arrival(view)),
        )
        return [view.name for view in order[:slots]]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        pass

    def forget(self, request: str) -> None:
        pass


def fcfs() -> SortedSchedule:
    """First come, first served. A running request came first, so it is never preempted."""
    return SortedSchedule(lambda view, running: 0.0)


def lp_sjf() -> SortedSchedule:
    """Shortest predicted output first, without preemption (Qiu et al., LAPS-SD's baseline).

    A request without a prediction counts as `max_tokens` long.
    """

    def predicted(view: RequestView, running: bool) -> float:
        if running:
            return -math.inf
        length = expected_len(view)
        return float(view.max_tokens) if length is None else length

    return SortedSchedule(predicted)


@dataclass(frozen=True, slots=True)
class EdfParams:
    patience_s: float = 10.0
    """Deadline after arrival of a request without an SLO for its next token."""
    hold_s: float = 0.25
    """A running request is preempted only for a deadline that is earlier by more than this;
    otherwise two urgent requests would alternate, with a swap in every round."""


def edf(params: EdfParams = EdfParams()) -> SortedSchedule:
    """Earliest deadline first: the same order as least SLO slack, as `now` is common to all."""
    return SortedSchedule(
        lambda view, running: (
            next_deadline(view, params.patience_s) - (params.hold_s if running else 0.0)
        )
    )


def next_deadline(request: RequestView, patience_s: float) -> float:
    """When the next token is due: the first by TTFT, each later one by the mean TPOT."""
    if request.first_token_s is None and request.slo.ttft_s is not None:
        return request.arrival_s + request.slo.ttft_s
    if request.first_token_s is not None and request.slo.tpot_s is not None:
        return request.first_token_s + request.slo.tpot_s * request.generated
    return request.arrival_s + patience_s


@dataclass(frozen=True, slots=True)
class LasParams:
    quantum_s: float = 0.5
    """Service is counted in whole quanta; otherwise requests of equal service would alternate, with
    a swap in every round."""


class Las:
    """Least attained service first, with preemption; service is slot time, like LAPS-SD's E_i."""

    def __init__(self, params: LasParams = LasParams()) -> None:
        self._params = params
        self._attained: dict[str, float] = {}

    def arrive(self, request: RequestView, now: float) -> None:
        self._attained[request.name] = 0.0

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        quantum = self._params.quantum_s
        order = sorted(
            requests,
            key=lambda view: (self._attained[view.name] // quantum, *by_arrival(view)),
        )
        return [view.name for view in order[:slots]]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        for outcome in outcomes:
            if outcome.request in self._attained:
                self._attained[outcome.request] += outcome.seconds

    def forget(self, request: str) -> None:
        self._attained.pop(request, None)
