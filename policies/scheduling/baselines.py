"""Baseline schedules: FCFS and LP-SJF, which sort by a key, and LAS, which counts service."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policies.request import RequestView, RoundOutcome, by_arrival, expected_len

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
