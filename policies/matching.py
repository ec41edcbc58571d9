"""Maximum-weight matching of requests to lanes, where lane j has B_j places (Spin, eq. 10-12).

The paper runs the KM algorithm on the matrix with B_j copies of lane j. It walks these copies,
which are ties, one by one: 1,024 requests with the same preferences take half a second. So above
`KM_ROWS` requests lanes are priced first (the dual of eq. 10) and requests assigned by these
prices; then KM re-assigns only the requests that could take part in an exchange with gain, until
there is no such exchange. Both ways end in an optimum.
"""

import numpy as np
from numpy.typing import NDArray

UNMATCHED = -1
KM_ROWS = 128
"""Up to so many requests KM alone is fast."""
_COOLING = 0.3
"""Factor between two temperatures."""
_COLDEST = 1e-3
"""The last temperature as a share of the spread of values; prices are about as inexact."""
_DISCOUNT = 3.0
"""What is taken off prices, in last temperatures: between lanes of equal value a softmax reaches
two loads only where the prices differ by the logarithm of their ratio."""
_NEWTON_STEPS = 3
"""At each temperature."""
_TOLERANCE = 1e-9
"""Gains below this share of the spread of values count as rounding errors."""

Values = NDArray[np.float64]
Choice = NDArray[np.intp]


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
    if np.any(_loads(chosen, lanes + 1) > rooms):
        chosen = _km(options, rooms) if requests <= KM_ROWS else _match_many(options, rooms)
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


def _match_many(options: Values, rooms: Choice) -> Choice:
    rows = np.arange(len(options))
    chosen = _assign_greedily(options - _prices(options, rooms), rooms)
    while len(movers := _exchanges(options, rooms, chosen)):
        staying = np.delete(rows, movers)
        left = rooms - _loads(chosen[staying], len(rooms))
        moved = _km(options[movers], left)
        if options[movers, moved].sum() <= options[movers, chosen[movers]].sum():
            break  # the gain was a rounding error
        chosen[movers] = moved
    return chosen


def _prices(options: Values, rooms: Choice) -> Values:
    """Approximate prices of a place on each lane: Newton's method on the dual of eq. 10, smoothed
    by a falling temperature. At temperature τ a request spreads over its options as
    softmax((value - price) / τ), and a price moves until its lane is just full."""
    lanes = options.shape[1]
    prices = np.zeros(lanes)
    last = temperature = float(np.ptp(options))
    # If all values are equal they have no spread, and prices need not be exact.
    coldest = _COLDEST * max(float(np.ptp(options[:, :-1])), _COLDEST * temperature)
    while temperature > coldest:
        for _ in range(_NEWTON_STEPS):
            priced = options - prices
            share = np.exp((priced - priced.max(axis=1, keepdims=True)) / temperature)
            share /= share.sum(axis=1, keepdims=True)
            load = share.sum(axis=0)
            excess = load - rooms
            moving = (prices > 0) | (excess > 0)
            moving[-1] = False  # "no lane" always has room
            if not moving.any():
                break
            curvature = (np.diag(load) - share.T @ share)[np.ix_(moving, moving)]
            ridge = _TOLERANCE * len(options) * np.eye(len(curvature))
            step = temperature * np.linalg.solve(curvature + ridge, excess[moving])
            trusted = 4 * temperature
            prices[moving] = np.maximum(0, prices[moving] + np.clip(step, -trusted, trusted))
        last, temperature = temperature, temperature * _COOLING
    # Slightly too low rather than too high, so that no place of any value stays empty.
    return np.maximum(0, prices - _DISCOUNT * last)


def _assign_greedily(priced: Values, rooms: Choice) -> Choice:
    """Each request to its best option with room; where room runs out, the requests that would lose
    most by their second-best option come first."""
    priced = priced.copy()
    left = rooms.copy()
    chosen = np.full(len(priced), UNMATCHED)
    unassigned = np.arange(len(priced))
    while len(unassigned):
        priced[:, left == 0] = -np.inf
        preferred = priced[unassigned].argmax(axis=1)
        best_two = np.partition(priced[unassigned], -2, axis=1)
        by_loss = np.argsort(best_two[:, -2] - best_two[:, -1], kind="stable")
        for lane in np.flatnonzero(_loads(preferred, len(left))):
            first = unassigned[by_loss[preferred[by_loss] == lane][: left[lane]]]
            chosen[first] = lane
            left[lane] -= len(first)
        unassigned = np.flatnonzero(chosen == UNMATCHED)
    return chosen


def _exchanges(options: Values, rooms: Choice, chosen: Choice) -> Choice:
    """The requests that could take part in an exchange with gain; none if the matching is optimal.

    An exchange is a cycle of lanes along which each lane passes one request on to the next or, at
    no cost, a free place. As in any transport problem, a matching is optimal if no cycle gains.
    """
    lanes = options.shape[1]
    gain = np.full((lanes, lanes), -np.inf)
    mover = np.full((lanes, lanes), UNMATCHED)
    for lane in range(lanes):
        on_lane = np.flatnonzero(chosen == lane)
        if len(on_lane):
            gains = options[on_lane] - options[on_lane, lane, None]
            gain[lane] = gains.max(axis=0)
            mover[lane] = on_lane[gains.argmax(axis=0)]
    spare = _loads(chosen, lanes) < rooms
    gain[spare] = np.maximum(gain[spare], 0)
    best_path = gain.copy()
    for via in range(lanes):
        best_path = np.maximum(best_path, best_path[:, via, None] + best_path[None, via, :])
    closes_cycle = gain + best_path.T > _TOLERANCE * np.ptp(options)
    movers = np.unique(mover[closes_cycle])
    return movers[movers != UNMATCHED]


def _loads(chosen: Choice, lanes: int) -> Choice:
    return np.bincount(chosen, minlength=lanes)
