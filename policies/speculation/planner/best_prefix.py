"""The planner's choice: nodes in the order of their worth, the objective at every prefix.

A verified node costs one token of the forward, whichever it is, so a round's time depends on how
many nodes are kept, and for each number the best set is a prefix of one order. Per request the
best k nodes are its k most probable, and each adds no more to the objective than the one before;
merging such sequences by what the next node adds is optimal for every k.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.speculation.forest import Floats, Forest, Ints
from policies.speculation.planner.objective import value_of, worth_of

_TOLERANCE = 0.01
"""Of a plain round: drafts that cost next to nothing are not thrown away where a cap is missed
anyway, because drafting has taken its time."""


class TimeCaps(NamedTuple):
    """For each request, how long the round may take if it gains g: slope·(1 + g) + offset."""

    slope: Floats
    offset: Floats
    """inf: as long as it likes."""


@njit(cache=True)
def no_caps(requests: int) -> TimeCaps:
    return TimeCaps(np.zeros(requests), np.full(requests, np.inf))


@njit(cache=True)
def caps_at(caps: TimeCaps, gain: Floats) -> Floats:
    return caps.slope * (1.0 + gain) + caps.offset


class Gains(NamedTuple):
    """The nodes of a forest request by request, each request's most probable first."""

    nodes: Ints
    owner: Ints
    path: Floats
    before: Floats
    """What the node's request gains from its nodes before it."""
    worth: Floats
    """What it adds to the objective."""
    place: Ints
    """0 for the most probable node of a request."""
    starts: Ints
    """Of each request."""
    by_worth: Ints
    """Places in these arrays, what adds most to the objective first."""
    weight: Floats
    """Of each request."""


class Ranking(NamedTuple):
    """The nodes of a forest, the most worthwhile first; any prefix is whole down to the roots."""

    nodes: Ints
    owner: Ints
    path: Floats
    before: Floats
    worth: Floats
    urgent: int
    """The first so many are there for needs."""
    weight: Floats
    """Of each request."""


class Choice(NamedTuple):
    nodes: Ints
    seconds: float
    gain: Floats
    """Expected of each request beyond the target's own token."""
    needs_over_harm: bool
    """Needs were served at the price of a no-harm cap."""


@njit(cache=True)
def freely(
    forest: Forest, power: float, weight: Floats, most: int, seconds: Floats, no_harm: TimeCaps
) -> tuple[Gains, Choice]:
    """The best prefix where no SLO asks for anything, which most rounds find to be enough; and the
    nodes by worth, for those that do not."""
    gains = _most_probable_first(forest, power, weight)
    ranking = _taken(gains, gains.by_worth[:most], 0)
    value = objective_of(ranking, power, seconds)
    return gains, best_prefix(ranking, value, seconds, no_caps(len(weight)), no_harm)


@njit(cache=True)
def needs_first(gains: Gains, urgent: Ints, urgency: Floats, most: int) -> Ranking:
    """By worth, but before all others the `urgent` best of each request, the greatest `urgency`
    first; `most`: nodes that the budget lets through."""
    by_worth = gains.by_worth
    needed = (gains.place < urgent[gains.owner])[by_worth]
    first = by_worth[needed]
    first = first[np.argsort(-urgency[gains.owner[first]], kind="mergesort")]
    order = np.concatenate((first, by_worth[~needed]))
    return _taken(gains, order[:most], min(len(first), most))


@njit(cache=True)
def best_prefix(
    ranking: Ranking, objective: Floats, seconds: Floats, slo: TimeCaps, no_harm: TimeCaps
) -> Choice:
    """Needs, then SLOs, then no harm, then the objective; prefixes shorter than the needs do not
    count. A cap that no prefix keeps is missed as little as can be, within `_TOLERANCE`."""
    length, harmed = _best_length(ranking, objective, seconds, slo, no_harm)
    gain = np.zeros(len(slo.slope))
    for at in range(length):
        gain[ranking.owner[at]] += ranking.path[at]
    return Choice(ranking.nodes[:length], seconds[length], gain, harmed and ranking.urgent > 0)


@njit(cache=True)
def _most_probable_first(forest: Forest, power: float, weight: Floats) -> Gains:
    count = len(forest.owner)
    nodes, place = np.empty(count, np.int64), np.empty(count, np.int64)
    path, before, worth, least = np.empty((4, count))
    for request in range(len(forest.starts) - 1):
        begin, end = forest.starts[request], forest.starts[request + 1]
        for node in range(begin, end):
            nodes[node] = node
        if not _falls(forest.path[begin:end]):
            nodes[begin:end] = begin + np.argsort(-forest.path[begin:end], kind="mergesort")
        gained = 0.0
        for at in range(begin, end):
            place[at] = at - begin
            before[at] = gained
            path[at] = forest.path[nodes[at]]
            worth[at] = weight[request] * worth_of(power, gained, path[at])
            gained += path[at]
            least[at] = -worth[at]
    by_worth = np.argsort(least, kind="mergesort")
    return Gains(nodes, forest.owner, path, before, worth, place, forest.starts, by_worth, weight)


@njit(cache=True)
def _falls(path: Floats) -> bool:
    """As that of a chain, which sorting would take far longer to find out."""
    falls = True
    for node in range(1, len(path)):
        falls &= path[node] <= path[node - 1]
    return falls


@njit(cache=True)
def _taken(gains: Gains, order: Ints, urgent: int) -> Ranking:
    nodes, owner = np.empty_like(order), np.empty_like(order)
    path, before, worth = np.empty((3, len(order)))
    for number, at in enumerate(order):
        nodes[number], owner[number] = gains.nodes[at], gains.owner[at]
        path[number], before[number] = gains.path[at], gains.before[at]
        worth[number] = gains.worth[at]
    return Ranking(nodes, owner, path, before, worth, urgent, gains.weight)


@njit(cache=True)
def objective_of(ranking: Ranking, power: float, seconds: Floats) -> Floats:
    """At every prefix."""
    value = np.empty(len(seconds))
    weights, worth = ranking.weight.sum(), 0.0
    for length in range(len(seconds)):
        value[length] = value_of(power, worth, weights, seconds[length])
        if length < len(ranking.worth):
            worth += ranking.worth[length]
    return value


@njit(cache=True)
def _best_length(
    ranking: Ranking, objective: Floats, seconds: Floats, slo: TimeCaps, no_harm: TimeCaps
) -> tuple[int, bool]:
    """How many of the ranking, and whether that misses a no-harm cap."""
    over_slo, over_harm = tightest_cap(ranking, slo), tightest_cap(ranking, no_harm)
    for length in range(len(seconds)):
        over_slo[length] = max(seconds[length] - over_slo[length], 0.0)
        over_harm[length] = max(seconds[length] - over_harm[length], 0.0)
    slo_limit = missed_by(over_slo[ranking.urgent :].min(), seconds[0])
    least_harm = np.inf
    for length in range(ranking.urgent, len(seconds)):
        if over_slo[length] <= slo_limit:
            least_harm = min(least_harm, over_harm[length])
    harm_limit = missed_by(least_harm, seconds[0])
    best, most = -1, -np.inf
    for length in range(ranking.urgent, len(seconds)):
        allowed = over_slo[length] <= slo_limit and over_harm[length] <= harm_limit
        if allowed and (best < 0 or objective[length] > most):
            best, most = length, objective[length]
    return best, over_harm[best] > 0.0


@njit(cache=True)
def tightest_cap(ranking: Ranking, caps: TimeCaps) -> Floats:
    """At every prefix, the tightest cap of any request.

    A request's cap rises with each of its nodes. A node's own place holds the cap that is in
    force until it is taken, so the tightest at a prefix is the least in the places behind it.
    """
    nodes = len(ranking.nodes)
    gain = np.zeros(len(caps.slope))
    for at in range(nodes):
        gain[ranking.owner[at]] += ranking.path[at]
    tightest = np.empty(nodes + 1)
    tightest[nodes] = np.inf
    for request in range(len(gain)):
        in_the_end = caps.slope[request] * (1.0 + gain[request]) + caps.offset[request]
        tightest[nodes] = min(tightest[nodes], in_the_end)
    for at in range(nodes - 1, -1, -1):
        request = ranking.owner[at]
        until_taken = caps.slope[request] * (1.0 + ranking.before[at]) + caps.offset[request]
        tightest[at] = min(tightest[at + 1], until_taken)
    return tightest


@njit(cache=True)
def missed_by(least_s: float, plain_s: float) -> float:
    """By how much a cap may be missed: not at all, or where every choice misses it, by at least
    `least_s`, by little more than that."""
    return least_s + _TOLERANCE * plain_s if least_s > 0.0 else 0.0


@njit(cache=True)
def urgent_nodes(
    gains: Gains, needs: Floats, least: Floats, worth_s: Floats, node_s: float, most: int
) -> tuple[Ints, Ints]:
    """How many of its best nodes each request needs, `most` at most, and whose need is out of
    reach.

    `needs` hold if the round takes as long as the objective would like, `least` if nothing is
    drafted: between them, the SLO's cap on the round decides. Of a need out of reach, nodes count
    that earn more (a token is worth `worth_s`, the TPOT) than the `node_s` that they cost each
    needy request.
    """
    urgent, hopeless = np.zeros(len(needs), np.int64), np.zeros(len(needs), np.bool_)
    needy = np.flatnonzero(needs > 1.0)
    for number in needy:
        begin, end = gains.starts[number], gains.starts[number + 1]
        path = gains.path[begin:end]
        # After none of its nodes, one, two, ...
        reached = np.zeros(len(path) + 1)
        reached[1:] = gains.before[begin:end] + path
        if reached[-1] >= needs[number] - 1.0:
            urgent[number] = np.searchsorted(reached, needs[number] - 1.0)
        elif reached[-1] >= least[number] - 1.0:
            urgent[number] = np.searchsorted(reached, least[number] - 1.0)
        else:
            hopeless[number] = True
            urgent[number] = (path * worth_s[number] > node_s * len(needy)).sum()
    return np.minimum(urgent, most), np.flatnonzero(hopeless)
