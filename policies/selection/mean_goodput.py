"""g̃ of Spin: the mean goodput of a request under a drafter, with a prior pooled over requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.pooling import DRAFTER, Statistics
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


_NOTHING = _Mean()


class MeanGoodput:
    """Lanes of one drafter share what is learned: the drafter is the bandit's arm."""

    def __init__(self) -> None:
        self._pairs: dict[str, dict[str, _Mean]] = {}
        self._drafters: dict[str, _Mean] = {}
        self._others: dict[str, _Mean] = {}
        """What other replicas have seen of each drafter."""

    def observe(self, request: str, drafter: str, goodput: float) -> None:
        pair = self._pairs.setdefault(request, {}).setdefault(drafter, _Mean())
        for mean in (pair, self._drafters.setdefault(drafter, _Mean())):
            mean.add(goodput)

    def estimate(self, request: str, drafter: str) -> float:
        """What the request has seen of the drafter; else what any has; else what any has of any."""
        pair = self._pairs.get(request, {}).get(drafter)
        if pair is not None:
            return pair.value
        known = self._everyones(drafter)
        return (known if known.count else self._fleet()).value

    def matrix(self, requests: Sequence[str], lanes: Sequence[LaneView]) -> NDArray[np.float64]:
        """Estimates: a row for each request, a column for each lane."""
        drafters = list(dict.fromkeys(lane.drafter for lane in lanes))
        known = np.array(
            [[self.estimate(name, drafter) for drafter in drafters] for name in requests]
        )
        return known[:, [drafters.index(lane.drafter) for lane in lanes]]

    def forget(self, request: str) -> None:
        self._pairs.pop(request, None)

    def export(self) -> Statistics:
        """Each slot of a drafter as one second of its goodput: the mean is over slots."""
        return {
            DRAFTER + drafter: [mean.total, mean.count, mean.count]
            for drafter, mean in self._drafters.items()
        }

    def pool(self, others: Statistics) -> None:
        self._others = {
            name.removeprefix(DRAFTER): _Mean(total, count)
            for name, (total, count, _) in others.items()
        }

    def _everyones(self, drafter: str) -> _Mean:
        return self._drafters.get(drafter, _NOTHING).plus(self._others.get(drafter, _NOTHING))

    def _fleet(self) -> _Mean:
        fleet = _Mean()
        for drafter in {**self._drafters, **self._others}:
            fleet = fleet.plus(self._everyones(drafter))
        return fleet
