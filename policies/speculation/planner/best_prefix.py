"""The search that the planner's decisions use: sort items by gain, evaluate the round's time and
speed at every prefix, and take the best prefix.

An item is something that can be added to a round: a node of a draft tree to verify, or one more
level of a request's draft. Where all items cost the same, as nodes in a verification do, the best
set of each size is a prefix, and the best prefix is the best set. The search evaluates all
prefixes, since the speed may rise again after it has fallen.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.protocols import Mask
from policies.speculation.forest import Floats, Ints
from policies.speculation.slo import TimeCaps

_TOLERANCE = 0.01
"""Where no prefix keeps all SLOs, the excess may exceed the smallest possible one by this share of
a plain round. So drafts that cost next to nothing are still verified if drafting has already taken
more time than an SLO allows."""


class Requests(NamedTuple):
    """All requests of the micro-batch, which wait for the round's verdicts, as arrays."""

    context: Floats
    """Committed tokens of each request."""
    need: Floats
    """Tokens beyond its own one that the request must gain in this round to keep its SLO; 0:
    none."""
    token_s: Floats
    """TPOT of its SLO: by so much each token that it gains may lengthen its time; 0 without one."""
    slo: TimeCaps
    expected: Floats
    """Tokens that it is expected to gain without the items: from levels drafted already, or from
    lookups."""
    min_gain: Floats
    """Its cap assumes at least this gain, which later levels or other lanes will bring."""
    first_token_limit_s: float
    """How long the round may take, whatever it gains, because a first token is due then; inf: none
    is."""


class Items(NamedTuple):
    """The items, in the order in which they are added to the round."""

    owner: Ints
    gain: Floats
    """Expected tokens of each item."""
    urgent: int
    """The first `urgent` items serve the needs of SLO requests."""


@njit(cache=True)
def item_order(gain: Floats, owner: Ints, urgent: Mask, need: Floats) -> Ints:
    """The order of the items: urgent ones first, by descending need of their requests; then by
    descending gain."""
    rank = np.empty(len(gain))
    for item in range(len(gain)):
        rank[item] = -need[owner[item]] if urgent[item] else -gain[item]
    order = np.argsort(rank, kind="mergesort")
    if not urgent.any():
        return order
    first = urgent[order]
    return np.concatenate((order[first], order[~first]))


@njit(cache=True)
def best_prefix(items: Items, requests: Requests, seconds: Floats) -> int:
    """The number of items to take. Precedence: needs, SLOs, the speed (n + Σ gains) / T of all.

    `seconds`: the round's time with the first 0, 1, 2, ... items. If no prefix keeps all SLOs, the
    excess is kept as small as possible.
    """
    least = _needed(items, requests, seconds)
    excess = _excess(items, requests, seconds)
    limit = excess[least:].min()
    limit += _TOLERANCE * seconds[0] if limit > 0.0 else 0.0
    tokens = len(requests.need) + requests.expected.sum()
    best, most = least, 0.0
    for count in range(len(seconds)):
        if count:
            tokens += items.gain[count - 1]
        if count >= least and excess[count] <= limit and tokens > most * seconds[count]:
            best, most = count, tokens / max(seconds[count], 1e-12)
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
def _excess(items: Items, requests: Requests, seconds: Floats) -> Floats:
    """For every prefix, the time by which the round exceeds the tightest cap of an SLO.

    Each item raises the cap of its request. So the tightest cap at a prefix is the minimum of the
    caps of all requests with the items taken so far, which one backward pass yields for all
    prefixes.
    """
    count = len(items.owner)
    gain, before = requests.expected.copy(), np.empty(count)
    for item in range(count):
        before[item] = gain[items.owner[item]]
        gain[items.owner[item]] += items.gain[item]
    tightest = requests.first_token_limit_s
    for request in range(len(gain)):
        tightest = min(tightest, _cap_s(requests, request, gain[request]))
    excess = np.empty(count + 1)
    excess[count] = max(seconds[count] - tightest, 0.0)
    for item in range(count - 1, -1, -1):
        request = items.owner[item]
        tightest = min(tightest, _cap_s(requests, request, before[item]))
        excess[item] = max(seconds[item] - tightest, 0.0)
    return excess


@njit(cache=True)
def _cap_s(requests: Requests, request: int, gain: float) -> float:
    slo = requests.slo
    return slo.slope[request] * (1.0 + max(gain, requests.min_gain[request])) + slo.offset[request]


@njit(cache=True)
def first_token_limit(left_s: Floats, least_s: float) -> float:
    """The least time that is left until a first token is due. One that even a round of `least_s`
    misses limits nothing."""
    shortest = np.inf
    for one in left_s:
        if least_s <= one < shortest:
            shortest = one
    return shortest
