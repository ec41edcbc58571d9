"""Who begins to draft, on which lane, and how deep: one choice for all lanes of a round.

The verdict waits for all of them, so what one lane takes is taken from everybody, and handling is
paid once. Each pair of a request and a lane gets the depth that is worth most at a price of time;
pairs are sorted by worth per second, and the objective is evaluated at every prefix. Several prices
and greatest depths are tried: where caps bind, short drafts of all beat long ones of a few.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import Bent, bent_seconds
from policies.speculation.forest import Floats, Ints
from policies.speculation.prefix import missed_by
from policies.speculation.prospects import Everyone, RoundCosts, everyone_in

_PRICES = (0.7, 2.0)
"""Of a second, over what it is worth to the objective in a plain round: n / T."""
_LEAST_GAIN = 0.05
"""Tokens that a draft must promise: to ask for it takes time that no cost tells of."""
_SLOPE_OVER = 16
"""Draft tokens over which the price of one in the verification is taken."""


class Chances(NamedTuple):
    """Pairs of a request and a lane that may draft, as arrays."""

    request: Ints
    """Its place in the round."""
    lane: Ints
    """Its place among the lanes."""
    first: Floats
    """Acceptance of the first level."""
    acceptance: Floats
    """Of each later one, given that the one before is accepted."""
    trust: Floats
    """Tokens that the lane adds per token that it promises."""
    found: Floats
    """How likely the lane has a draft at all: a lookup often has none."""
    unread: Floats
    """Tokens that the first draft step reads."""
    lasting: Floats
    """Rounds in which having read them pays."""
    deepest: Ints


class Call(NamedTuple):
    """Of one lane."""

    step: Bent
    call_s: float
    """Besides its steps."""
    width: int


class Beginning(NamedTuple):
    depth: Ints
    """Of each pair; 0: it does not draft."""
    gain: Floats
    """Tokens that it should bring."""
    nodes: Floats
    """By lane, tokens to verify."""
    drafting_s: Floats
    """By lane."""


def begin(
    chances: Chances,
    calls: Sequence[Call],
    everyone: Floats,
    costs: RoundCosts,
    fair: bool,
) -> Beginning:
    """`calls` by lane; `everyone`: rows of the whole round (prospects.py)."""
    steps = np.array([(*call.step, call.call_s) for call in calls], np.float64)
    widths = np.array([call.width for call in calls])
    return Beginning(*_begin(chances, steps, widths, everyone, costs, fair))


_CALL_S = len(Bent._fields)
"""Column of `steps` behind the fields of a step's cost."""


@njit(cache=True)
def _begin(
    chances: Chances, steps: Floats, widths: Ints, everyone: Floats, costs: RoundCosts, fair: bool
) -> tuple[Ints, Floats, Floats, Floats]:
    round_ = everyone_in(everyone)
    urgent = (round_.needs > 0.0)[chances.request]
    best = -np.inf
    chosen = (
        np.zeros(len(urgent), np.int64),
        np.zeros(len(urgent)),
        np.zeros(len(steps)),
        np.zeros(len(steps)),
    )
    for price in _PRICES:
        for deepest in _halves(chances.deepest):
            depth, worth, gain, seconds = _at_price(
                price, deepest, chances, steps, widths, round_, costs, fair
            )
            line = np.argsort(-worth / np.maximum(seconds, 1e-9), kind="mergesort")
            line = line[gain[line] >= _LEAST_GAIN]
            line = np.concatenate((line[urgent[line]], line[~urgent[line]]))
            line = _within_budgets(line, depth, chances, widths, costs)
            value, count = _best_prefix(
                line, depth, worth, gain, urgent, chances, steps, widths, round_, costs, fair
            )
            if value > best:
                best = value
                begun = np.zeros(len(urgent), np.int64)
                begun[line[:count]] = depth[line[:count]]
                tokens = np.where(begun > 0, gain, 0.0)
                nodes, drafting_s = _by_lane(begun, chances, steps, widths, round_)
                chosen = (begun, tokens, nodes, drafting_s)
    return chosen


@njit(cache=True)
def _halves(deepest: Ints) -> list[int]:
    depths, depth = [0], 1
    while depth < deepest.max():
        depths.append(depth)
        depth *= 2
    depths[0] = depth
    return depths


@njit(cache=True)
def _at_price(
    price: float,
    deepest: int,
    chances: Chances,
    steps: Floats,
    widths: Ints,
    round_: Everyone,
    costs: RoundCosts,
    fair: bool,
) -> tuple[Ints, Floats, Floats, Floats]:
    """Of each pair the best depth, its worth, its tokens, and the seconds that it takes."""
    plain_s = costs.waiting_s + bent_seconds(costs.verify, costs.read, costs.fixed)
    with_more_s = costs.waiting_s + bent_seconds(
        costs.verify, costs.read, costs.fixed + _SLOPE_OVER
    )
    node_s = (with_more_s - plain_s) / _SLOPE_OVER
    second = price * costs.time_price * len(round_.context) / plain_s
    count = len(chances.request)
    sharing = np.bincount(chances.lane, minlength=len(steps))
    depths = np.zeros(count, np.int64)
    worths, gains, seconds = np.zeros(count), np.zeros(count), np.zeros(count)
    for pair in range(count):
        request, lane = chances.request[pair], chances.lane[pair]
        alpha, gamma, delta = steps[lane, 0], steps[lane, 1], steps[lane, 2]
        reading = 1.0 + (chances.unread[pair] - 1.0) / chances.lasting[pair]
        took_s = steps[lane, _CALL_S] / sharing[lane] + gamma * (reading - widths[lane])
        more_s = gamma * widths[lane] + alpha * round_.context[request] + delta / sharing[lane]
        more_s += chances.found[pair] * widths[lane] * node_s
        level = chances.trust[pair] * chances.first[pair]
        worth = gain = 0.0
        most = -np.inf
        for depth in range(1, min(deepest, chances.deepest[pair]) + 1):
            needed = gain < round_.promised[request]
            worth += np.log1p(level / (1.0 + gain)) if fair else level
            gain += level
            level *= chances.acceptance[pair]
            took_s += more_s
            net = worth - second * took_s
            if net > most or needed:
                most = max(most, net)
                depths[pair], worths[pair], gains[pair], seconds[pair] = depth, worth, gain, took_s
    return depths, worths, gains, seconds


@njit(cache=True)
def _within_budgets(
    line: Ints, depth: Ints, chances: Chances, widths: Ints, costs: RoundCosts
) -> Ints:
    """The pairs that the verification and the draft steps have room for, in line."""
    room = costs.room
    left = np.full(len(widths), costs.draft_budget)
    fit = np.zeros(len(line), np.bool_)
    for place, pair in enumerate(line):
        lane = chances.lane[pair]
        nodes = depth[pair] * widths[lane]
        if depth[pair] and nodes <= room and widths[lane] <= left[lane]:
            fit[place] = True
            room -= nodes
            left[lane] -= widths[lane]
    return line[fit]


@njit(cache=True)
def _best_prefix(
    line: Ints,
    depth: Ints,
    worth: Floats,
    gain: Floats,
    urgent: Ints,
    chances: Chances,
    steps: Floats,
    widths: Ints,
    round_: Everyone,
    costs: RoundCosts,
    fair: bool,
) -> tuple[float, int]:
    """The objective, and how many of the line begin for it."""
    requests = len(round_.context)
    seconds, over, value = np.empty((3, len(line) + 1))
    levels = np.zeros((len(steps), int(depth.max()) if len(depth) else 0, 2))
    drafting_s, spared_s = np.zeros(len(steps)), np.zeros(len(steps))
    gained = np.zeros(requests)
    caps_s = round_.slope * (1.0 + round_.promised) + round_.offset
    nodes = added = brought = 0.0
    for count in range(len(line) + 1):
        if count:
            pair = line[count - 1]
            lane = chances.lane[pair]
            drafting_s[lane] = _add(
                levels[lane], depth[pair], pair, chances, steps[lane], widths[lane], round_
            )
            reading = chances.unread[pair] - 1.0
            spared_s[lane] += steps[lane, 1] * reading * (1.0 - 1.0 / chances.lasting[pair])
            request = chances.request[pair]
            gained[request] += gain[pair]
            reached = max(gained[request], round_.promised[request])
            caps_s[request] = round_.slope[request] * (1.0 + reached) + round_.offset[request]
            brought += gain[pair]
            nodes += chances.found[pair] * depth[pair] * widths[lane]
            added += worth[pair]
        around_s = bent_seconds(costs.verify, costs.read, costs.fixed + nodes)
        # Also where nothing should be found: who is asked in vain holds the round up as well.
        around_s += costs.waiting_s + (costs.handling_s if count else 0.0)
        seconds[count] = around_s + drafting_s.max()
        paid_s = around_s + (drafting_s - spared_s).max()
        over[count] = max(seconds[count] - caps_s.min(), 0.0)
        if fair:
            value[count] = added - costs.time_price * requests * np.log(paid_s)
        else:
            value[count] = np.log((requests + brought) / paid_s)
    least = _for_needs(line, gain, urgent, chances, seconds, round_)
    limit = missed_by(over[least:].min(), seconds[0])
    best, most = least, -np.inf
    for count in range(least, len(value)):
        if over[count] <= limit and value[count] > most:
            best, most = count, value[count]
    return most, best


@njit(cache=True)
def _add(
    levels: Floats,
    depth: int,
    pair: int,
    chances: Chances,
    step: Floats,
    width: int,
    round_: Everyone,
) -> float:
    """The lane's draft steps with this pair in them: context and tokens of each, and the time of
    the whole call."""
    total_s = step[_CALL_S]
    for level in range(len(levels)):
        if level < depth:
            levels[level, 0] += round_.context[chances.request[pair]] + level
            levels[level, 1] += width if level else chances.unread[pair]
        if levels[level, 1] > 0.0:
            total_s += bent_seconds(_bent(step), levels[level, 0], levels[level, 1])
    return total_s


@njit(cache=True)
def _bent(step: Floats) -> Bent:
    return Bent(step[0], step[1], step[2], step[3], step[4])


@njit(cache=True)
def _for_needs(
    line: Ints,
    gain: Floats,
    urgent: Ints,
    chances: Chances,
    seconds: Floats,
    round_: Everyone,
) -> int:
    """How many begin for needs, whatever the objective says: the most for whom the seconds that
    their next tokens earn them outweigh those that drafting takes from every urgent request."""
    waiting = (round_.needs > 0.0).sum()
    least, earned_s = 0, 0.0
    for place, pair in enumerate(line):
        if urgent[pair]:
            earned_s += gain[pair] * round_.token_s[chances.request[pair]]
            if earned_s > (seconds[place + 1] - seconds[0]) * waiting:
                least = place + 1
    return least


@njit(cache=True)
def _by_lane(
    depth: Ints, chances: Chances, steps: Floats, widths: Ints, round_: Everyone
) -> tuple[Floats, Floats]:
    nodes, drafting_s = np.zeros(len(steps)), np.zeros(len(steps))
    levels = np.zeros((len(steps), int(depth.max()) if len(depth) else 0, 2))
    for pair in np.flatnonzero(depth):
        lane = chances.lane[pair]
        nodes[lane] += chances.found[pair] * depth[pair] * widths[lane]
        drafting_s[lane] = _add(
            levels[lane], depth[pair], pair, chances, steps[lane], widths[lane], round_
        )
    return nodes, drafting_s
