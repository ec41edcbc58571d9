"""Shortest remaining time first by the true output lengths: the oracle of schedules."""

from collections.abc import Sequence

from lab.studies.oracle import Foresight
from policies.request import RequestView
from policies.scheduling.fcfs import SortedSchedule


def srpt(foresight: Foresight, drafter: str | None, depth: int) -> SortedSchedule:
    """Orders by remaining rounds with drafts of `depth` tokens, which cost alike. Preemption counts
    as free, so it is optimal only with one slot and where a switch costs nothing."""
    rounds_of: dict[str, list[int]] = {}

    def rounds_left(view: RequestView, running: bool) -> float:
        if view.name not in rounds_of:
            rounds_of[view.name] = _rounds_from(foresight, view.name, drafter, depth)
        return float(rounds_of[view.name][view.generated])

    return SortedSchedule(rounds_left)


def _rounds_from(foresight: Foresight, request: str, drafter: str | None, depth: int) -> list[int]:
    """Remaining rounds at each output position."""
    tokens = foresight.arrivals[request].output_tokens
    right: Sequence[int] = [0] * tokens if drafter is None else foresight.right(request, drafter)
    rounds = [0] * (tokens + 1)
    for position in reversed(range(tokens)):
        end = min(tokens, position + min(right[position], depth) + 1)
        rounds[position] = 1 + rounds[end]
    return rounds
