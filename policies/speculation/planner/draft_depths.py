"""Who begins to draft, on which lane, and how deep: one choice for all lanes of a round.

The verdict waits for all of them, so what one lane takes is taken from everybody, and handling is
paid once. Each pair of a request and a lane gets the depth that is worth most at a price of time;
pairs are sorted by worth per second, and the objective is evaluated at every prefix. Several prices
and greatest depths are tried: where caps bind, short drafts of all beat long ones of a few.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import forward_seconds
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.best_prefix import missed_by
from policies.speculation.planner.objective import value_of, worth_of
from policies.speculation.planner.round_inputs import (
    CALL_S,
    Calls,
    Chances,
    Everyone,
    RoundCosts,
    everyone_in,
    step_of,
)

_PRICES = (0.7, 2.0)
"""Of a second, over what it is worth to the objective in a plain round: Σ weight / T."""
_LEAST_GAIN = 0.05
"""Tokens that a draft must promise: to ask for it takes time that no cost tells of."""
_SLOPE_OVER = 16
"""Draft tokens over which the price of one in the verification is taken."""


class Beginning(NamedTuple):
    depth: Ints
    """Of each pair; 0: it does not draft."""
    gain: Floats
    """Tokens that it should bring."""
    nodes: Floats
    """By lane, tokens to verify."""
    drafting_s: Floats
    """By lane."""


@njit(cache=True)
def begin(
    chances: Chances, calls: Calls, everyone: Floats, costs: RoundCosts, power: float
) -> Beginning:
    """`everyone`: rows of the whole round (round_inputs.py)."""
    round_ = everyone_in(everyone)
    pairs, plain_s = len(chances.request), _plain_s(costs, 0.0)
    urgent = np.empty(pairs, np.bool_)
    for pair, request in enumerate(chances.request):
        urgent[pair] = round_.needs[request] > 0.0
    levels = _levels(chances, calls, round_, costs, power)
    most = levels.worth.shape[1]
    halvings = 1
    while 1 << (halvings - 1) < most:
        halvings += 1
    tried = np.empty((len(_PRICES) * halvings, pairs), np.int64)
    tries = 0
    best = -np.inf
    begun, tokens = np.zeros(pairs, np.int64), np.zeros(pairs)
    for price in _PRICES:
        second = price * costs.weights / plain_s
        deepest_wish = most
        for halving in range(halvings):
            # No bound first, then 1, 2, 4, ... levels at most.
            deepest = 1 << (halving - 1) if halving else most
            if halving and deepest >= deepest_wish:
                break  # everyone's wish is within it: nothing new
            depth, worth, gain, seconds = _at_price(second, deepest, levels, chances, round_)
            if not halving:
                deepest_wish = depth.max()
            if _is_one_of(depth, tried, tries):
                continue
            tried[tries] = depth
            tries += 1
            line = _in_line(depth, worth, gain, seconds, urgent)
            line = _within_room(line, depth, chances, calls.width, costs.room)
            value, count = _best_prefix(
                line, depth, worth, gain, urgent, chances, calls, round_, costs, power
            )
            if value > best:
                best = value
                begun[:] = 0
                tokens[:] = 0.0
                for pair in line[:count]:
                    begun[pair], tokens[pair] = depth[pair], gain[pair]
    nodes, drafting_s = _by_lane(begun, chances, calls, round_)
    return Beginning(begun, tokens, nodes, drafting_s)


@njit(cache=True)
def _is_one_of(depth: Ints, tried: Ints, tries: int) -> bool:
    for one in range(tries):
        differ = False
        for pair in range(len(depth)):
            differ |= depth[pair] != tried[one, pair]
        if not differ:
            return True
    return False


@njit(cache=True)
def _plain_s(costs: RoundCosts, more: float) -> float:
    """Of a round in which nobody drafts and `more` tokens are verified."""
    return costs.waiting_s + forward_seconds(costs.verify, costs.read, costs.fixed + more)


class _Levels(NamedTuple):
    """What each pair, a row, has and has taken with 1, 2, ... levels."""

    worth: Floats
    gain: Floats
    seconds: Floats


@njit(cache=True)
def _levels(
    chances: Chances, calls: Calls, round_: Everyone, costs: RoundCosts, power: float
) -> _Levels:
    node_s = (_plain_s(costs, _SLOPE_OVER) - _plain_s(costs, 0.0)) / _SLOPE_OVER
    steps, widths = calls.step, calls.width
    sharing = np.zeros(len(widths))
    for lane in chances.lane:
        sharing[lane] += 1.0
    worths, gains, seconds = np.zeros((3, len(chances.request), chances.deepest.max()))
    for pair in range(len(chances.request)):
        request, lane = chances.request[pair], chances.lane[pair]
        alpha, gamma, delta = steps[lane, 0], steps[lane, 1], steps[lane, 2]
        reading = 1.0 + (chances.unread[pair] - 1.0) / chances.lasting[pair]
        took_s = steps[lane, CALL_S] / sharing[lane] + gamma * (reading - widths[lane])
        more_s = gamma * widths[lane] + alpha * round_.context[request] + delta / sharing[lane]
        more_s += chances.found[pair] * widths[lane] * node_s
        weight = round_.weight[request]
        level = chances.trust[pair] * chances.first[pair]
        worth = gain = 0.0
        for depth in range(chances.deepest[pair]):
            worth += weight * worth_of(power, gain, level)
            gain += level
            level *= chances.acceptance[pair]
            took_s += more_s
            worths[pair, depth], gains[pair, depth], seconds[pair, depth] = worth, gain, took_s
    return _Levels(worths, gains, seconds)


@njit(cache=True)
def _at_price(
    second: float, deepest: int, levels: _Levels, chances: Chances, round_: Everyone
) -> tuple[Ints, Floats, Floats, Floats]:
    """Of each pair the best depth where a second is worth so much, its worth, its tokens, and the
    seconds that it takes."""
    count = len(chances.request)
    depths = np.zeros(count, np.int64)
    worths, gains, seconds = np.zeros((3, count))
    for pair in range(count):
        promised = round_.promised[chances.request[pair]]
        gain, most = 0.0, -np.inf
        for level in range(min(deepest, chances.deepest[pair])):
            needed = gain < promised
            gain = levels.gain[pair, level]
            worth, took_s = levels.worth[pair, level], levels.seconds[pair, level]
            net = worth - second * took_s
            if net > most or needed:
                most = max(most, net)
                depths[pair], worths[pair] = level + 1, worth
                gains[pair], seconds[pair] = gain, took_s
    return depths, worths, gains, seconds


# Loops where numpy's expressions would do: each array costs as much as what is computed in it.


@njit(cache=True)
def _in_line(depth: Ints, worth: Floats, gain: Floats, seconds: Floats, urgent: Ints) -> Ints:
    """Pairs that promise enough, the urgent ones before all others, the most worth per second
    first."""
    rate = np.empty(len(depth))
    for pair in range(len(depth)):
        rate[pair] = -worth[pair] / max(seconds[pair], 1e-9)
    line, count = np.empty(len(depth), np.int64), 0
    by_rate = np.argsort(rate, kind="mergesort")
    for first in (True, False):
        for pair in by_rate:
            if urgent[pair] == first and gain[pair] >= _LEAST_GAIN:
                line[count] = pair
                count += 1
    return line[:count]


@njit(cache=True)
def _within_room(line: Ints, depth: Ints, chances: Chances, widths: Ints, room: int) -> Ints:
    """The pairs that the verification has room for, in line."""
    fitting, count = np.empty_like(line), 0
    for pair in line:
        nodes = depth[pair] * widths[chances.lane[pair]]
        if depth[pair] and nodes <= room:
            fitting[count] = pair
            count += 1
            room -= nodes
    return fitting[:count]


@njit(cache=True)
def _best_prefix(
    line: Ints,
    depth: Ints,
    worth: Floats,
    gain: Floats,
    urgent: Ints,
    chances: Chances,
    calls: Calls,
    round_: Everyone,
    costs: RoundCosts,
    power: float,
) -> tuple[float, int]:
    """The objective, and how many of the line begin for it."""
    requests = len(round_.context)
    steps, widths = calls.step, calls.width
    seconds, over, value = np.empty((3, len(line) + 1))
    levels = np.zeros((len(steps), int(depth.max()) if len(depth) else 0, 2))
    drafting_s, spared_s = np.zeros((2, len(steps)))
    gained, caps_s = np.zeros((2, requests))
    for request in range(requests):
        caps_s[request] = round_.slope[request] * (1.0 + round_.promised[request])
        caps_s[request] += round_.offset[request]
    tightest = caps_s.argmin()
    nodes = added = 0.0
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
            if request == tightest:  # none falls
                tightest = caps_s.argmin()
            nodes += chances.found[pair] * depth[pair] * widths[lane]
            added += worth[pair]
        around_s = forward_seconds(costs.verify, costs.read, costs.fixed + nodes)
        # Also where nothing should be found: who is asked in vain holds the round up as well.
        around_s += costs.waiting_s + (costs.handling_s if count else 0.0)
        longest_s = paid_s = -np.inf
        for lane in range(len(steps)):
            longest_s = max(longest_s, drafting_s[lane])
            paid_s = max(paid_s, drafting_s[lane] - spared_s[lane])
        seconds[count], paid_s = around_s + longest_s, around_s + paid_s
        over[count] = max(seconds[count] - caps_s[tightest], 0.0)
        value[count] = value_of(power, added, costs.weights, paid_s)
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
    total_s = step[CALL_S]
    for level in range(len(levels)):
        if level < depth:
            levels[level, 0] += round_.context[chances.request[pair]] + level
            levels[level, 1] += width if level else chances.unread[pair]
        if levels[level, 1] > 0.0:
            total_s += forward_seconds(step_of(step), levels[level, 0], levels[level, 1])
    return total_s


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
    waiting = 0
    for need in round_.needs:
        waiting += need > 0.0
    least, earned_s = 0, 0.0
    for place, pair in enumerate(line):
        if urgent[pair]:
            earned_s += gain[pair] * round_.token_s[chances.request[pair]]
            if earned_s > (seconds[place + 1] - seconds[0]) * waiting:
                least = place + 1
    return least


@njit(cache=True)
def _by_lane(
    depth: Ints, chances: Chances, calls: Calls, round_: Everyone
) -> tuple[Floats, Floats]:
    steps, widths = calls.step, calls.width
    nodes, drafting_s = np.zeros(len(steps)), np.zeros(len(steps))
    levels = np.zeros((len(steps), int(depth.max()) if len(depth) else 0, 2))
    for pair in range(len(depth)):
        if depth[pair] == 0:
            continue
        lane = chances.lane[pair]
        nodes[lane] += chances.found[pair] * depth[pair] * widths[lane]
        drafting_s[lane] = _add(
            levels[lane], depth[pair], pair, chances, steps[lane], widths[lane], round_
        )
    return nodes, drafting_s
