"""Maximum-weight matching of requests to lanes, where lane j has B_j places (Spin, eq. 10-12).

As in the paper the KM algorithm runs on the matrix with B_j copies of lane j. It walks these
copies, which are ties, one by one: 1,024 requests with the same preferences take half a second.
"""

import numpy as np
from numpy.typing import NDArray

UNMATCHED = -1

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
