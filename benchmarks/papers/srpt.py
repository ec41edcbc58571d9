"""Shortest remaining time first, by what the target will really say: the schedules' oracle."""

from collections.abc import Sequence

from benchmarks.simulator.oracle import Foresight
from policies.request import RequestView
from policies.scheduling.baselines import SortedSchedule


def srpt(foresight: Foresight, drafter: str | None, depth: int) -> SortedSchedule:
    """By rounds left under drafts of `depth` tokens, whose rounds cost alike. Preempts for
    nothing, so it is optimal only with one slot, and where a switch costs nothing."""
    known: dict[str, list[int]] = {}

    def rounds_left(view: RequestView, running: bool) -> float:
        if view.name not in known:
            known[view.name] = _rounds_from(foresight, view.name, drafter, depth)
        return float(known[view.name][view.generated])

    return SortedSchedule(rounds_left)


def _rounds_from(foresight: Foresight, request: str, drafter: str | None, depth: int) -> list[int]:
    """At each output position, how many more rounds there will be."""
    tokens = foresight.arrivals[request].output_tokens
    right: Sequence[int] = [0] * tokens if drafter is None else foresight.right(request, drafter)
    rounds = [0] * (tokens + 1)
    for position in reversed(range(tokens)):
        ahead = min(tokens, position + min(right[position], depth) + 1)
        rounds[position] = 1 + rounds[ahead]
    return rounds
