"""What determines the time of a round besides the drafts to be decided on, and what each lane can
add for each of its requests."""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import ForwardCost, forward_seconds
from policies.estimates.acceptance import Tables, estimate
from policies.speculation.forest import Floats, Ints


class RoundCosts(NamedTuple):
    verify: ForwardCost
    context: float
    """Committed tokens of all requests, which the verification attends to."""
    base_tokens: float
    """Tokens in the verification besides drafts."""
    wait_s: float
    """Time of every round besides drafting and verification."""
    overhead_s: float
    """Additional time of a round with drafts; where lookups draft anyway, a part of `wait_s`."""
    room: int
    """Draft tokens that the verification has room for."""


@njit(cache=True)
def round_seconds(costs: RoundCosts, nodes: float, drafting_s: float) -> float:
    """Time between two verdicts of a request if `nodes` draft tokens are verified."""
    verify_s = forward_seconds(costs.verify, costs.context, costs.base_tokens + nodes)
    overhead_s = costs.overhead_s if nodes > 0.0 or drafting_s > 0.0 else 0.0
    return drafting_s + overhead_s + costs.wait_s + verify_s


FIRST, NEXT, ADDED = range(3)
"""For a lane and a request: the probability that the first level is accepted; that a later level is
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
