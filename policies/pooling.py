"""Statistics that replicas share: each exports sums over its own observations and gets the others'.

Statistics are vectors of numbers by name, so they are sent as plain built-ins and those of several
replicas can be added. A learner exports only its own observations, so that nothing it gets from the
pool is counted twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Statistics = Mapping[str, Sequence[float]]
Vectors = Mapping[str, NDArray[np.float64]]

_SEPARATOR = ":"
"""Between the names of a learner and of its statistic, where those of several are combined."""


class Pooled(Protocol):
    """A learner whose statistics are shared between replicas."""

    def export(self) -> Statistics:
        """This replica's own observations."""
        ...

    def pool(self, others: Statistics) -> None:
        """Takes the observations of all other replicas, which replace those of the last call."""
        ...


def combine(parts: Mapping[str, Statistics]) -> dict[str, list[float]]:
    """The statistics of several learners, given by learner name, as one mapping."""
    return {
        f"{learner}{_SEPARATOR}{name}": list(vector)
        for learner, part in parts.items()
        for name, vector in part.items()
    }


def split_name(name: str) -> tuple[str, str]:
    """The learner's name, and the name that the learner gives to the statistic."""
    learner, _, statistic = name.partition(_SEPARATOR)
    return learner, statistic


def extract(statistics: Statistics, learner: str) -> Statistics:
    """The part of the combined statistics that belongs to this learner."""
    parts = ((*split_name(name), vector) for name, vector in statistics.items())
    return {name: vector for owner, name, vector in parts if owner == learner}


def finite_vectors(statistics: Statistics) -> Vectors | None:
    """As arrays; None if any number is not finite, as it would spoil every sum that it enters."""
    arrays = {name: np.asarray(vector, np.float64) for name, vector in statistics.items()}
    return arrays if all(np.isfinite(array).all() for array in arrays.values()) else None


def weighted_sum(parts: Iterable[tuple[Vectors, float]]) -> dict[str, list[float]]:
    """The weighted sum of each statistic."""
    sums: dict[str, NDArray[np.float64]] = {}
    for part, weight in parts:
        for name, vector in part.items():
            so_far = sums.setdefault(name, np.zeros_like(vector))
            # Replicas of another version may use other bins; the first vector's are kept.
            if so_far.shape == vector.shape:
                so_far += weight * vector
    return {name: vector.tolist() for name, vector in sums.items()}


def scaled(statistics: Statistics, factor: float) -> Statistics:
    return {name: [factor * value for value in vector] for name, vector in statistics.items()}
