"""Requests to lanes: a maximum-weight matching in which lane j has B_j places (Spin, eq. 10-12).

The paper's KM algorithm runs on the matrix with B_j copies of lane j. Copies are ties, which KM
walks one by one: 1,024 requests that like the same lanes take it half a second. So above `KM_ROWS`
we price the lanes first (the dual of eq. 10), seat requests by these prices, and let KM re-seat
only those that an exchange could be made of, until no exchange is left that gains. Both ways end
in an optimum.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

UNMATCHED = -1
KM_ROWS = 128
"""Up to so many requests KM alone is fast."""
_COOLING = 0.3
_COLDEST = 1e-3
"""Temperature of the last prices, of the spread of values: their error is about as large."""
_DISCOUNT = 3.0
"""In last temperatures: at equal values a softmax shares out in the ratio of two loads only where
their prices differ by its logarithm."""
_NEWTON_STEPS = 3
_TOLERANCE = 1e-9
"""Of the spread of values: what counts as no gain."""

Values = NDArray[np.float64]
Choice = NDArray[np.intp]


def match(values: Values, capacities: Choice, unmatched: Values) -> Choice:
    """The lane of each request (a row of `values`), or UNMATCHED, of the greatest total value.

    `unmatched[i]` is the value of no lane for request i: far below all values, it makes as many
    requests matched as there are places.
    """
    requests, lanes = values.shape
    if not requests:
        return np.empty(0, np.intp)
    # No lane is one more column, with room for everyone.
    options = np.empty((requests, lanes + 1))
    options[:, :lanes], options[:, lanes] = values, unmatched
    rooms = np.full(lanes + 1, requests)
    np.minimum(capacities, requests, out=rooms[:lanes])
    chosen = options.argmax(axis=1)
    if np.any(_loads(chosen, lanes + 1) > rooms):
        chosen = _km(options, rooms) if requests <= KM_ROWS else _match_many(options, rooms)
    return np.where(chosen == lanes, UNMATCHED, chosen)


def _km(options: Values, rooms: Choice) -> Choice:
    """KM on the expanded matrix. Lanes with room for everyone need no copies: only the best of
    them matters to a request, and that is one column of its own."""
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
    chosen = _seat(options - _prices(options, rooms), rooms)
    while len(movers := _exchanges(options, rooms, chosen)):
        staying = np.delete(rows, movers)
        left = rooms - _loads(chosen[staying], len(rooms))
        moved = _km(options[movers], left)
        if options[movers, moved].sum() <= options[movers, chosen[movers]].sum():
            break  # what looked like a gain was rounding
        chosen[movers] = moved
    return chosen


def _prices(options: Values, rooms: Choice) -> Values:
    """What a place on each lane is worth, nearly: Newton's method on the dual of eq. 10, smoothed
    by a temperature that falls. At temperature τ a request spreads over its options as
    softmax((value - price) / τ), and a price moves until its lane is just full."""
    lanes = options.shape[1]
    prices = np.zeros(lanes)
    last = temperature = float(np.ptp(options))
    # Values all alike have no spread, and need no exact price.
    coldest = _COLDEST * max(float(np.ptp(options[:, :-1])), _COLDEST * temperature)
    while temperature > coldest:
        for _ in range(_NEWTON_STEPS):
            priced = options - prices
            share = np.exp((priced - priced.max(axis=1, keepdims=True)) / temperature)
            share /= share.sum(axis=1, keepdims=True)
            load = share.sum(axis=0)
            excess = load - rooms
            moving = (prices > 0) | (excess > 0)
            moving[-1] = False  # there is always room for no lane
            if not moving.any():
                break
            curvature = (np.diag(load) - share.T @ share)[np.ix_(moving, moving)]
            ridge = _TOLERANCE * len(options) * np.eye(len(curvature))
            step = temperature * np.linalg.solve(curvature + ridge, excess[moving])
            trusted = 4 * temperature
            prices[moving] = np.maximum(0, prices[moving] + np.clip(step, -trusted, trusted))
        last, temperature = temperature, temperature * _COOLING
    # Rather a little too cheap: then no place that is worth something stays empty.
    return np.maximum(0, prices - _DISCOUNT * last)


def _seat(priced: Values, rooms: Choice) -> Choice:
    """Everyone to their best option with room; where it runs out, those who lose most by the
    next best go first."""
    priced = priced.copy()
    left = rooms.copy()
    chosen = np.full(len(priced), UNMATCHED)
    standing = np.arange(len(priced))
    while len(standing):
        priced[:, left == 0] = -np.inf
        wish = priced[standing].argmax(axis=1)
        best = np.partition(priced[standing], -2, axis=1)
        eager = np.argsort(best[:, -2] - best[:, -1], kind="stable")
        for lane in np.flatnonzero(_loads(wish, len(left))):
            first = standing[eager[wish[eager] == lane][: left[lane]]]
            chosen[first] = lane
            left[lane] -= len(first)
        standing = np.flatnonzero(chosen == UNMATCHED)
    return chosen


def _exchanges(options: Values, rooms: Choice, chosen: Choice) -> Choice:
    """The requests that an exchange with gain could be made of; none where the matching is
    optimal. An exchange is a ring of lanes along which each passes one request on to the next, or
    a free place in its stead, at no cost. As in any transport problem, where no ring gains,
    nothing does."""
    lanes = options.shape[1]
    gain = np.full((lanes, lanes), -np.inf)
    passed_on = np.full((lanes, lanes), UNMATCHED)
    for lane in range(lanes):
        on_lane = np.flatnonzero(chosen == lane)
        if len(on_lane):
            gains = options[on_lane] - options[on_lane, lane, None]
            gain[lane] = gains.max(axis=0)
            passed_on[lane] = on_lane[gains.argmax(axis=0)]
    spare = _loads(chosen, lanes) < rooms
    gain[spare] = np.maximum(gain[spare], 0)
    best_way = gain.copy()
    for via in range(lanes):
        best_way = np.maximum(best_way, best_way[:, via, None] + best_way[None, via, :])
    closes_ring = gain + best_way.T > _TOLERANCE * np.ptp(options)
    movers = np.unique(passed_on[closes_ring])
    return movers[movers != UNMATCHED]


def _loads(chosen: Choice, lanes: int) -> Choice:
    return np.bincount(chosen, minlength=lanes)
