"""Places on lanes while they are given away."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from policies.matching import UNMATCHED, match
from policies.request import LaneView

_STAY = 1e-6
"""Of the largest value: between equal lanes a request stays where it is."""


class LaneCapacity:
    def __init__(self, lanes: Sequence[LaneView]) -> None:
        self._lanes = lanes
        self._left = {lane.name: lane.capacity for lane in lanes}

    def take(self, lane: str) -> bool:
        """One place on `lane`, if it is here and has one left."""
        if self._left.get(lane, 0) < 1:
            return False
        self._left[lane] -= 1
        return True

    def emptiest(self, drafter: str) -> str | None:
        """The lane of `drafter` with the most places left, at least one."""
        left = {
            lane.name: self._left[lane.name]
            for lane in self._lanes
            if lane.drafter == drafter and self._left[lane.name] > 0
        }
        return max(left, key=left.__getitem__, default=None)

    def draw(self, wishes: Mapping[str, str], rng: np.random.Generator) -> dict[str, str | None]:
        """Each request gets the lane it has drawn; where too many drew the same, chance decides
        who sits out (Spin, Algorithm 2, line 9)."""
        seated: dict[str, str | None] = {}
        names = list(wishes)
        for index in rng.permutation(len(names)):
            name = names[index]
            seated[name] = wishes[name] if self.take(wishes[name]) else None
        return seated

    def match(
        self,
        requests: Sequence[str],
        values: NDArray[np.float64],
        unmatched: NDArray[np.float64],
        staying: Mapping[str, str | None],
    ) -> dict[str, str | None]:
        """The places left, to the greatest total value (Spin, eq. 10). Rows of `values` are
        `requests`, columns the lanes; `staying` says where the requests are now."""
        column = {lane.name: index for index, lane in enumerate(self._lanes)}
        here = np.array(
            [column.get(staying.get(name) or "", UNMATCHED) for name in requests], np.intp
        )
        stay = np.flatnonzero(here != UNMATCHED)
        values = values.copy()
        values[stay, here[stay]] += _STAY * max(1.0, float(np.abs(values).max(initial=0.0)))
        left = np.array([self._left[lane.name] for lane in self._lanes], np.intp)
        chosen: dict[str, str | None] = {}
        for name, index in zip(requests, match(values, left, unmatched).tolist(), strict=True):
            chosen[name] = None if index == UNMATCHED else self._lanes[index].name
        return chosen


def as_many_as_fit(
    values: NDArray[np.float64], precedence: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Values of no lane so low that every place is filled, and that a request of higher
    precedence is left out last: seating it may move one request on each lane at most."""
    requests, lanes = values.shape
    if not values.size:
        return np.zeros(requests)
    step = (lanes + 1) * max(float(np.ptp(values)), 1.0)
    low: float = values.min()
    return low - step * (1 + precedence)
