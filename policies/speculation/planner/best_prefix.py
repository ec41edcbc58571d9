"""The planner's one search: items sorted by worth, the objective evaluated at every prefix.

An item is something that a round may take on: a node of a draft tree to verify, or one more level
of a request's draft. Where every item costs the same, as a node of the verification does, the best
set of each size is a prefix, because no item of a request adds more than the one before it; then
the best prefix is the best set. The search never stops at the first loss.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.protocols import Mask
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.objective import value_of, worth_of
from policies.speculation.slo import TimeCaps

_TOLERANCE = 0.01
"""Of a plain round: by how much a cap may be missed beyond what is inevitable. Drafts that cost
next to nothing are then kept, where drafting has already taken the time."""


@njit(cache=True)
def no_caps(requests: int) -> TimeCaps:
    return TimeCaps(np.zeros(requests), np.full(requests, np.inf))


class Requests(NamedTuple):
    """All requests that wait for the round's verdict, as arrays."""

    context: Floats
    """Committed tokens."""
    weight: Floats
    """In the fair objective."""
    need: Floats
    """Tokens that the request must gain in this round for its SLO; 0: none."""
    token_s: Floats
    """Its TPOT: the time that one more token earns it."""
    slo: TimeCaps
    no_harm: TimeCaps
    expected: Floats
    """Tokens that it gains besides the items: from levels drafted already, or from other lanes."""
    floor: Floats
    """The gain that its caps count with at least: what it will have when drafting ends."""


class Items(NamedTuple):
    """In the order in which they are taken."""

    owner: Ints
    gain: Floats
    """Tokens expected."""
    worth: Floats
    """What the item adds to the objective."""
    urgent: int
    """The first so many serve needs."""


@njit(cache=True)
def taking_order(rate: Floats, owner: Ints, urgent: Mask, need: Floats) -> Ints:
    """Urgent items first, those of the greatest need before others; then by `rate`."""
    rank = np.empty(len(rate))
    for item in range(len(rate)):
        rank[item] = -need[owner[item]] if urgent[item] else -rate[item]
    order = np.argsort(rank, kind="mergesort")
    if not urgent.any():
        return order
    first = urgent[order]
    return np.concatenate((order[first], order[~first]))


@njit(cache=True)
def best_prefix(
    fair: bool, items: Items, requests: Requests, seconds: Floats, charged_s: Floats
) -> int:
    """How many of the items to take. Precedence: needs, SLO caps, no-harm caps, the objective.

    `seconds`: the round's time with the first 0, 1, 2, ... items; `charged_s`: the part of it that
    the objective counts. Caps that no prefix keeps are missed by as little as possible.
    """
    least = _needed(items, requests, seconds)
    over_slo = _excess(items, requests, requests.slo, seconds)
    over_harm = _excess(items, requests, requests.no_harm, seconds)
    slo_limit = _limit(over_slo[least:].min(), seconds[0])
    least_harm = np.inf
    for count in range(least, len(seconds)):
        if over_slo[count] <= slo_limit:
            least_harm = min(least_harm, over_harm[count])
    harm_limit = _limit(least_harm, seconds[0])
    worth = 0.0
    for request in range(len(requests.weight)):
        worth += requests.weight[request] * worth_of(fair, 0.0, requests.expected[request])
    weights, best, most = requests.weight.sum(), -1, -np.inf
    for count in range(len(seconds)):
        if count:
            worth += items.worth[count - 1]
        allowed = over_slo[count] <= slo_limit and over_harm[count] <= harm_limit
        if count >= least and allowed:
            value = value_of(fair, worth, weights, charged_s[count])
            if best < 0 or value > most:
                best, most = count, value
    return best


@njit(cache=True)
def _needed(items: Items, requests: Requests, seconds: Floats) -> int:
    """The longest prefix of urgent items whose tokens earn their requests more time than the items
    take from all requests in need."""
    waiting = (requests.need > requests.expected).sum()
    least, earned_s = 0, 0.0
    for item in range(items.urgent):
        earned_s += items.gain[item] * requests.token_s[items.owner[item]]
        if earned_s > (seconds[item + 1] - seconds[0]) * waiting:
            least = item + 1
    return least


@njit(cache=True)
def _excess(items: Items, requests: Requests, caps: TimeCaps, seconds: Floats) -> Floats:
    """At every prefix, by how much the round is longer than the tightest cap allows.

    A request's cap rises with each of its items, so the tightest cap at a prefix is the least of
    those that its later items, or none, will raise.
    """
    count = len(items.owner)
    gain, before = requests.expected.copy(), np.empty(count)
    for item in range(count):
        before[item] = gain[items.owner[item]]
        gain[items.owner[item]] += items.gain[item]
    tightest = np.inf
    for request in range(len(gain)):
        tightest = min(tightest, _cap_s(requests, caps, request, gain[request]))
    excess = np.empty(count + 1)
    excess[count] = max(seconds[count] - tightest, 0.0)
    for item in range(count - 1, -1, -1):
        request = items.owner[item]
        tightest = min(tightest, _cap_s(requests, caps, request, before[item]))
        excess[item] = max(seconds[item] - tightest, 0.0)
    return excess


@njit(cache=True)
def _cap_s(requests: Requests, caps: TimeCaps, request: int, gain: float) -> float:
    return caps.slope[request] * (1.0 + max(gain, requests.floor[request])) + caps.offset[request]


@njit(cache=True)
def _limit(least_s: float, plain_s: float) -> float:
    return least_s + _TOLERANCE * plain_s if least_s > 0.0 else 0.0
