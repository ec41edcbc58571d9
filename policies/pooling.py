"""Statistics that replicas share: each exports sums over its own observations and gets the others'.

Statistics are vectors of numbers by name, so they are sent as plain built-ins and those of several
replicas can be added. A learner exports only its own observations, so that nothing it gets from the
pool is counted twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Protocol

Statistics = Mapping[str, Sequence[float]]
ByLearner = Mapping[str, Statistics]
"""The statistics of several learners, by the learner's name."""


class Pooled(Protocol):
    """A learner whose statistics are shared between replicas."""

    def export(self) -> Statistics:
        """This replica's own observations."""
        ...

    def pool(self, others: Statistics) -> None:
        """Takes the observations of all other replicas, which replace those of the last call."""
        ...


def is_finite(statistics: ByLearner) -> bool:
    return all(
        isfinite(number)
        for of_learner in statistics.values()
        for vector in of_learner.values()
        for number in vector
    )


def summed(parts: Iterable[ByLearner]) -> dict[str, dict[str, list[float]]]:
    """The sums of the statistics of several replicas."""
    sums: dict[str, dict[str, list[float]]] = {}
    for part in parts:
        for learner, statistics in part.items():
            so_far = sums.setdefault(learner, {})
            for name, vector in statistics.items():
                before = so_far.setdefault(name, [0.0] * len(vector))
                if len(before) == len(vector):  # else of a replica of another version
                    so_far[name] = [one + other for one, other in zip(before, vector, strict=True)]
    return sums
