"""The places that lanes have left while requests are assigned to them, and the maximum-weight
matching of requests to these places: B_j of lane j (Spin, eq. 10-12).

As in the paper the KM algorithm runs on the matrix with B_j copies of lane j. It walks these
copies, which are ties, one by one: 1,024 requests with the same preferences take half a second.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from policies.request import LaneView

UNMATCHED = -1

Values = NDArray[np.float64]
Choice = NDArray[np.intp]

_STAY_BONUS = 1e-6
"""Value of staying on a lane, as a share of the largest value, so that a request does not move
between equal lanes."""


class LaneCapacity:
    def __init__(self, lanes: Sequence[LaneView]) -> None:
        self._lanes = lanes
        self._left = {lane.name: lane.capacity for lane in lanes}

    def take(self, lane: str) -> bool:
        """Takes a place on `lane`; False if the lane does not exist or has none left."""
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

    def assign_drawn(
        self, drawn: Mapping[str, str], rng: np.random.Generator
    ) -> dict[str, str | None]:
        """Each request gets the lane drawn for it; where too many have the same, random ones get
        none (Spin, Algorithm 2, line 9)."""
        assigned: dict[str, str | None] = {}
        names = list(drawn)
        for index in rng.permutation(len(names)):
            name = names[index]
            assigned[name] = drawn[name] if self.take(drawn[name]) else None
        return assigned

    def match(
        self,
        requests: Sequence[str],
        values: NDArray[np.float64],
        unmatched: NDArray[np.float64],
        staying: Mapping[str, str | None],
    ) -> dict[str, str | None]:
        """Assigns the places left for the greatest total value (Spin, eq. 10). Rows of `values` are
        `requests`, columns the lanes; `staying` has the requests' present lanes."""
        column = {lane.name: index for index, lane in enumerate(self._lanes)}
        here = np.array(
            [column.get(staying.get(name) or "", UNMATCHED) for name in requests], np.intp
        )
        stay = np.flatnonzero(here != UNMATCHED)
        values = values.copy()
        values[stay, here[stay]] += _STAY_BONUS * max(1.0, float(np.abs(values).max(initial=0.0)))
        left = np.array([self._left[lane.name] for lane in self._lanes], np.intp)
        chosen: dict[str, str | None] = {}
        for name, index in zip(requests, match(values, left, unmatched).tolist(), strict=True):
            chosen[name] = None if index == UNMATCHED else self._lanes[index].name
        return self._spread(chosen, staying)

    def _spread(
        self, chosen: Mapping[str, str | None], staying: Mapping[str, str | None]
    ) -> dict[str, str | None]:
        """The lanes of one drafter are worth the same to a request, so what comes to any of them
        goes to the emptiest."""
        spread = dict(chosen)
        drafters = {lane.name: lane.drafter for lane in self._lanes}
        if len({*drafters.values()}) == len(drafters):
            return spread
        coming = []
        for name, lane in chosen.items():
            if lane is None:
                continue
            if staying.get(name) == lane:
                self.take(lane)
            else:
                coming.append((name, drafters[lane]))
        for name, drafter in coming:
            lane = spread[name] = self.emptiest(drafter)
            if lane is not None:
                self.take(lane)
        return spread


def unmatched_values(
    values: NDArray[np.float64], precedence: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Values of having no lane that are so low that every place is filled, and that requests of
    higher precedence come first: one that is matched instead of another displaces one request on
    each lane at most."""
    requests, lanes = values.shape
    if not values.size:
        return np.zeros(requests)
    step = (lanes + 1) * max(float(np.ptp(values)), 1.0)
    low: float = values.min()
    return low - step * (1 + precedence)


def match(values: Values, capacities: Choice, unmatched: Values) -> Choice:
    """The lane of each request (a row of `values`), or UNMATCHED, for the greatest total value.

    `unmatched[i]` is the value of request i without a lane: if it is far below all values, as many
    requests are matched as there are places.
    """
    requests, lanes = values.shape
    if not requests:
        return np.empty(0, np.intp)
    # The last column is "no lane", with room for all requests.
    options = np.empty((requests, lanes + 1))
    options[:, :lanes], options[:, lanes] = values, unmatched
    rooms = np.full(lanes + 1, requests)
    np.minimum(capacities, requests, out=rooms[:lanes])
    chosen = options.argmax(axis=1)
    if np.any(np.bincount(chosen, minlength=lanes + 1) > rooms):
        chosen = _km(options, rooms)
    return np.where(chosen == lanes, UNMATCHED, chosen)


def _km(options: Values, rooms: Choice) -> Choice:
    """KM on the expanded matrix. Lanes with room for all requests need no copies: of these only the
    best one matters to a request, which is one column of its own."""
    # Imported here, because it takes half a second: policies/precompile.py waits for it.
    from scipy.optimize import linear_sum_assignment

    requests = len(options)
    roomy = np.flatnonzero(rooms >= requests)
    tight = np.flatnonzero(rooms < requests)
    places = np.repeat(tight, rooms[tight])
    best_roomy = roomy[options[:, roomy].argmax(axis=1)]
    rows = np.arange(requests)
    expanded = np.full((requests, len(places) + requests), -np.inf)
    expanded[:, : len(places)] = options[:, places]
    expanded[rows, len(places) + rows] = options[rows, best_roomy]
    _, columns = linear_sum_assignment(expanded, maximize=True)
    placed = columns < len(places)
    chosen = best_roomy
    chosen[placed] = places[columns[placed]]
    return chosen
