"""g̃ of Spin: the mean goodput of a request under a drafter, with a prior pooled over requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.request import LaneView


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


class MeanGoodput:
    """Lanes of one drafter share what is learned: the drafter is the bandit's arm."""

    def __init__(self) -> None:
        self._pairs: dict[str, dict[str, _Mean]] = {}
        self._drafters: dict[str, _Mean] = {}
        self._all = _Mean()

    def observe(self, request: str, drafter: str, goodput: float) -> None:
        pair = self._pairs.setdefault(request, {}).setdefault(drafter, _Mean())
        for mean in (pair, self._drafters.setdefault(drafter, _Mean()), self._all):
            mean.add(goodput)

    def estimate(self, request: str, drafter: str) -> float:
        """What the request has seen of the drafter; else what any has; else what any has of any."""
        pair = self._pairs.get(request, {}).get(drafter)
        return (pair or self._drafters.get(drafter) or self._all).value

    def matrix(self, requests: Sequence[str], lanes: Sequence[LaneView]) -> NDArray[np.float64]:
        """Estimates: a row for each request, a column for each lane."""
        drafters = list(dict.fromkeys(lane.drafter for lane in lanes))
        known = np.array(
            [[self.estimate(name, drafter) for drafter in drafters] for name in requests]
        )
        return known[:, [drafters.index(lane.drafter) for lane in lanes]]

    def forget(self, request: str) -> None:
        self._pairs.pop(request, None)
