"""What each lane can add for each request of a round, by the acceptance estimates."""

import numpy as np
from numba import njit

from policies.estimates.acceptance import Tables, estimate
from policies.speculation.forest import Floats, Ints

FIRST, NEXT, ADDED = range(3)
"""Of a lane and a request: the probability that the first level is accepted; that a later level is
accepted, given that the one before it is; and the tokens that the lane adds per accepted token,
since lookups may propose the same ones. 0 for requests that the lane may not draft for."""


@njit(cache=True)
def chances_of(tables: Tables, rows: Ints, starts: Ints, request: Ints, numbers: Ints) -> Floats:
    """By [lane, quantity, request]. Lane l may draft for request[starts[l]:starts[l + 1]], with the
    drafter numbers[l]; `rows`: the requests' rows in the tables."""
    chances = np.zeros((len(numbers), 3, len(rows)))
    for lane, number in enumerate(numbers):
        for place in request[starts[lane] : starts[lane + 1]]:
            expected = estimate(tables, rows[place], number)
            chances[lane, FIRST, place] = expected.first
            chances[lane, NEXT, place] = expected.later
            chances[lane, ADDED, place] = expected.added
    return chances


@njit(cache=True)
def chain_gain(chances: Floats, request: int, depth: int) -> float:
    """The expected tokens of a chain of `depth` levels for one request."""
    gain, level = 0.0, chances[ADDED, request] * chances[FIRST, request]
    for _ in range(depth):
        gain += level
        level *= chances[NEXT, request]
    return gain
