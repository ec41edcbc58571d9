"""Schedules that sort requests by a key: first come, first served."""

from collections.abc import Callable, Sequence

from policies.request import RequestView, RoundOutcome, by_arrival

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
