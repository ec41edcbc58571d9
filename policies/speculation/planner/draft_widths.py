"""How wide a beam to draft, before anything is drafted."""

import numpy as np
from numba import njit

from policies.cost import forward_seconds
from policies.estimates.acceptance import Belief
from policies.estimates.calibration import rank_acceptance
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.objective import value_of, worth_of
from policies.speculation.planner.round_inputs import CALL_S, RoundCosts, round_seconds, step_of

_MOST_CERTAIN = 0.99
"""However wide, a level may miss."""
_LARGE = 1e100
"""A product that has room for many more factors."""


@njit(cache=True)
def best_widths(
    starts: Ints,
    requests: Ints,
    belief: Belief,
    context: Floats,
    siblings: Floats,
    everyone: int,
    calls: Floats,
    costs: RoundCosts,
    power: float,
    max_depth: int,
) -> Ints:
    """The width of the best uniform beam of any depth, by lane, all its requests drafting alike.

    A level of width w survives with p + (1 - p)·siblings[lane, w - 1]: `siblings` is the
    probability that one of those behind the first is right where the first is not. Of what
    survives, the share `added` counts. Lane l has the pairs from starts[l] up to starts[l + 1],
    of `requests` that have committed `context` tokens, and `calls` are the rows of its costs;
    `everyone` waits.
    """
    widths = np.ones(len(siblings), np.int64)
    for lane in range(len(siblings)):
        begin, end = starts[lane], starts[lane + 1]
        widest = min(siblings.shape[1], costs.room // max(1, end - begin))
        if widest > 1:
            read = 0.0
            for request in requests[begin:end]:
                read += context[request]
            widths[lane] = _best_of_lane(
                belief.acceptance[begin:end],
                belief.added[begin:end],
                siblings[lane, :widest],
                read,
                everyone,
                calls[lane],
                costs,
                max_depth,
                power,
            )
    return widths


@njit(cache=True)
def sibling_shares(wrong: float, ranks: Floats, widest: int) -> Floats:
    """P(one of the siblings behind the first is right | the first is not), by width.

    `wrong`: how often the first is not. `ranks`: how often a sibling of each rank was judged, and
    how often it was the right one.
    """
    shares, share = np.zeros(widest), wrong / 3
    for rank in range(1, widest):
        # Before it was seen, a sibling is three quarters as good as the one before it, the second
        # one right in a quarter of what the first leaves over.
        share = rank_acceptance(ranks, rank, 0.75 * share)
        shares[rank] = min(1.0, shares[rank - 1] + share / max(wrong, share, 1e-9))
    return shares


@njit(cache=True)
def _best_of_lane(
    acceptance: Floats,
    added: Floats,
    shares: Floats,
    read: float,
    everyone: int,
    call: Floats,
    costs: RoundCosts,
    max_depth: int,
    power: float,
) -> int:
    requests = len(acceptance)
    best, most = 1, -np.inf
    for width in range(1, len(shares) + 1):
        survival, mass, gain = np.empty((3, requests))
        for request in range(requests):
            survives = acceptance[request] + (1.0 - acceptance[request]) * shares[width - 1]
            survival[request] = min(survives, _MOST_CERTAIN)
            mass[request], gain[request] = added[request], 0.0
        level = float(requests * width)
        step_s = forward_seconds(step_of(call), read, level)
        for depth in range(1, max_depth + 1):
            if level * depth > costs.room:
                break
            for request in range(requests):
                mass[request] *= survival[request]
                gain[request] += mass[request]
            drafting_s = call[CALL_S] + step_s * depth
            worth = _worth_of_all(power, gain)
            seconds = round_seconds(costs, level * depth, drafting_s)
            value = value_of(power, worth, float(everyone), seconds)
            if value > most:
                best, most = width, value
    return best


@njit(cache=True)
def _worth_of_all(power: float, gain: Floats) -> float:
    """Of power 0 by few logarithms: they are most of what a width takes to think about."""
    total, product = 0.0, 1.0
    if power > 0.0:
        for one in gain:
            total += worth_of(power, 0.0, one)
        return total
    for one in gain:
        product *= 1.0 + one
        if product > _LARGE:
            total += np.log(product)
            product = 1.0
    return total + np.log(product)
