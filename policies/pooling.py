"""What replicas tell each other of what they have learned: sums over what each has seen itself.

Statistics are vectors of numbers by name. So they travel as plain built-ins, and those of several
replicas add up. A learner exports its own alone, whatever it was told of others: what comes back
from the pool is never counted again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Statistics = Mapping[str, Sequence[float]]
Vectors = Mapping[str, NDArray[np.float64]]

DRAFTER = "drafter/"
"""Before a drafter's name, in what a selection exports: its tokens, seconds and slots."""
_OF = ":"
"""Between a learner and its statistics, where those of several learners are together."""


@runtime_checkable
class Pooled(Protocol):
    """A learner that shares what it has learned."""

    def export(self) -> Statistics:
        """What was seen here."""
        ...

    def pool(self, others: Statistics) -> None:
        """What all others have seen, instead of what was told before."""
        ...


def together(parts: Mapping[str, Statistics]) -> dict[str, list[float]]:
    """Those of several learners, by the learners' names, as one."""
    return {
        f"{learner}{_OF}{name}": list(vector)
        for learner, part in parts.items()
        for name, vector in part.items()
    }


def split(name: str) -> tuple[str, str]:
    """The learner, and its own name for the vector."""
    learner, _, own = name.partition(_OF)
    return learner, own


def apart(statistics: Statistics, learner: str) -> Statistics:
    """What `together` has taken from that learner."""
    parts = ((*split(name), vector) for name, vector in statistics.items())
    return {name: vector for owner, name, vector in parts if owner == learner}


def vectors(statistics: Statistics) -> Vectors | None:
    """None where a number is not finite: it would spoil every sum that it enters."""
    arrays = {name: np.asarray(vector, np.float64) for name, vector in statistics.items()}
    return arrays if all(np.isfinite(array).all() for array in arrays.values()) else None


def total(parts: Iterable[tuple[Vectors, float]]) -> dict[str, list[float]]:
    """The weighted sum, name by name."""
    sums: dict[str, NDArray[np.float64]] = {}
    for part, weight in parts:
        for name, vector in part.items():
            so_far = sums.setdefault(name, np.zeros_like(vector))
            # Replicas of two versions may count in bins of their own: the first ones' stand.
            if so_far.shape == vector.shape:
                so_far += weight * vector
    return {name: vector.tolist() for name, vector in sums.items()}


def scaled(statistics: Statistics, factor: float) -> Statistics:
    return {name: [factor * value for value in vector] for name, vector in statistics.items()}
