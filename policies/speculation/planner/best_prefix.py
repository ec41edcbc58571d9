"""The search behind all of the planner's decisions: sort items by worth, evaluate the round's time
and the objective at every prefix, and take the best prefix.

An item is something that can be added to a round: a node of a draft tree to verify, or one more
level of a request's draft. The items of a request add less and less to the objective. So where all
items cost the same, as nodes in a verification do, the best set of each size is a prefix, and the
best prefix is the best set. The search evaluates all prefixes, since the objective may rise again
after it has fallen.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.protocols import Mask
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.objective import value_of, worth_of
from policies.speculation.slo import TimeCaps

_TOLERANCE = 0.01
"""Where no prefix keeps all caps, the excess may exceed the smallest possible one by this share of
a plain round. So drafts that cost next to nothing are still verified if drafting has already taken
more time than a cap allows."""


@njit(cache=True)
def no_caps(requests: int) -> TimeCaps:
    return TimeCaps(np.zeros(requests), np.full(requests, np.inf))


class Requests(NamedTuple):
    """All requests of the micro-batch, which wait for the round's verdicts, as arrays."""

    context: Floats
    """Committed tokens of each request."""
    weight: Floats
    """Fairness weight of each request."""
    need: Floats
    """Tokens beyond its own one that the request must gain in this round to keep its SLO; 0:
    none."""
    token_s: Floats
    """TPOT of its SLO: by so much each token that it gains may lengthen its time; 0 without one."""
    slo: TimeCaps
    no_harm: TimeCaps
    expected: Floats
    """Tokens that it is expected to gain without the items: from levels drafted already, or from
    other lanes."""
    min_gain: Floats
    """Its caps assume at least this gain, which later levels or lanes will bring."""


class Items(NamedTuple):
    """The items, in the order in which they are added to the round."""

    owner: Ints
    gain: Floats
    """Expected tokens of each item."""
    worth: Floats
    """What the item adds to the objective."""
    urgent: int
    """The first `urgent` items serve the needs of SLO requests."""


@njit(cache=True)
def item_order(rate: Floats, owner: Ints, urgent: Mask, need: Floats) -> Ints:
    """The order of the items: urgent ones first, by descending need of their requests; then by
    descending `rate`."""
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
    """The number of items to take. Precedence: needs, SLO caps, no-harm caps, the objective.

    `seconds`: the round's time with the first 0, 1, 2, ... items; `charged_s`: the part of it that
    counts in the objective. If no prefix keeps all caps, the excess is kept as small as possible.
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
    """The length of the longest prefix of urgent items whose tokens give their requests more time
    than the items take from all requests in need together."""
    waiting = (requests.need > requests.expected).sum()
    least, earned_s = 0, 0.0
    for item in range(items.urgent):
        earned_s += items.gain[item] * requests.token_s[items.owner[item]]
        if earned_s > (seconds[item + 1] - seconds[0]) * waiting:
            least = item + 1
    return least


@njit(cache=True)
def _excess(items: Items, requests: Requests, caps: TimeCaps, seconds: Floats) -> Floats:
    """For every prefix, the time by which the round exceeds the tightest cap.

    Each item raises the cap of its request. So the tightest cap at a prefix is the minimum of the
    caps of all requests with the items taken so far, which one backward pass yields for all
    prefixes.
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
    return (
        caps.slope[request] * (1.0 + max(gain, requests.min_gain[request])) + caps.offset[request]
    )


@njit(cache=True)
def _limit(least_s: float, plain_s: float) -> float:
    return least_s + _TOLERANCE * plain_s if least_s > 0.0 else 0.0
