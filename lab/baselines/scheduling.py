"""The schedules that LAPS-SD is compared with: LP-SJF, which sorts by predicted length, and LAS,
which counts service."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from policies.request import RequestView, RoundOutcome, by_arrival, expected_len
from policies.scheduling.fcfs import SortedSchedule


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
