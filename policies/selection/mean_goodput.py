"""g̃ of Spin: the mean goodput of a request with a drafter, with a prior pooled over requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.pooling import Statistics
from policies.request import LaneView


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: float = 0.0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0

    def plus(self, other: "_Mean") -> "_Mean":
        return _Mean(self.total + other.total, self.count + other.count)


_EMPTY = _Mean()
_EXPORTED = 2
"""Numbers exported for each drafter: the sum of the goodputs of its slots, and their number."""


class MeanGoodput:
    """The bandit's arms are drafters: all lanes of a drafter share its estimates."""

    def __init__(self) -> None:
        self._pairs: dict[str, dict[str, _Mean]] = {}
        self._drafters: dict[str, _Mean] = {}
        self._others: dict[str, _Mean] = {}
        """The statistics of each drafter on other replicas."""

    def observe(self, request: str, drafter: str, goodput: float) -> None:
        pair = self._pairs.setdefault(request, {}).setdefault(drafter, _Mean())
        for mean in (pair, self._drafters.setdefault(drafter, _Mean())):
            mean.add(goodput)

    def estimate(self, request: str, drafter: str) -> float:
        """The mean of the request with this drafter; else of all requests with it; else of all
        requests with any drafter."""
        pair = self._pairs.get(request, {}).get(drafter)
        if pair is not None:
            return pair.value
        pooled = self._pooled(drafter)
        return (pooled if pooled.count else self._of_all_drafters()).value

    def matrix(self, requests: Sequence[str], lanes: Sequence[LaneView]) -> NDArray[np.float64]:
        """Estimates, with a row for each request and a column for each lane."""
        drafters = list(dict.fromkeys(lane.drafter for lane in lanes))
        estimates = np.array(
            [[self.estimate(name, drafter) for drafter in drafters] for name in requests]
        )
        return estimates[:, [drafters.index(lane.drafter) for lane in lanes]]

    def forget(self, request: str) -> None:
        self._pairs.pop(request, None)

    def export(self) -> Statistics:
        return {drafter: [mean.total, mean.count] for drafter, mean in self._drafters.items()}

    def pool(self, others: Statistics) -> None:
        """Vectors of another length, from a replica of another version, are left out."""
        self._others = {
            drafter: _Mean(*vector)
            for drafter, vector in others.items()
            if len(vector) == _EXPORTED
        }

    def _pooled(self, drafter: str) -> _Mean:
        return self._drafters.get(drafter, _EMPTY).plus(self._others.get(drafter, _EMPTY))

    def _of_all_drafters(self) -> _Mean:
        mean = _Mean()
        for drafter in {**self._drafters, **self._others}:
            mean = mean.plus(self._pooled(drafter))
        return mean
