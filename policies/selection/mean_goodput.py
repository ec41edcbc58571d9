"""g̃ of Spin: the mean goodput of a request with a drafter, with a prior over all requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


class MeanGoodput:
    """The bandit's arms are drafters: all lanes of a drafter share its estimates."""

    def __init__(self) -> None:
        self._pairs: dict[str, dict[str, _Mean]] = {}
        self._drafters: dict[str, _Mean] = {}

    def observe(self, request: str, drafter: str, goodput: float) -> None:
        pair = self._pairs.setdefault(request, {}).setdefault(drafter, _Mean())
        for mean in (pair, self._drafters.setdefault(drafter, _Mean())):
            mean.add(goodput)

    def estimate(self, request: str, drafter: str) -> float:
        """The mean of the request with this drafter; else of all requests with it; else of all
        requests with any drafter."""
        mean = self._pairs.get(request, {}).get(drafter) or self._drafters.get(drafter)
        if mean is None:
            every = self._drafters.values()
            mean = _Mean(sum(one.total for one in every), sum(one.count for one in every))
        return mean.value

    def matrix(self, requests: Sequence[str], lanes: Sequence[LaneView]) -> NDArray[np.float64]:
        """Estimates, with a row for each request and a column for each lane."""
        drafters = list(dict.fromkeys(lane.drafter for lane in lanes))
        estimates = np.array(
            [[self.estimate(name, drafter) for drafter in drafters] for name in requests]
        )
        return estimates[:, [drafters.index(lane.drafter) for lane in lanes]]

    def forget(self, request: str) -> None:
        self._pairs.pop(request, None)
