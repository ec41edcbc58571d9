"""Chooses which requests draft, on which lanes and how deep, jointly for all lanes of a round.

All requests wait for the slowest lane, so the time that one lane takes delays all of them. Each
level that a pair of a request and a lane may draft counts as a virtual node, whose probability is
estimated from the pair's earlier drafts; the levels to draft are the best prefix of all virtual
nodes.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import forward_seconds
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.best_prefix import Items, Requests, best_prefix, item_order
from policies.speculation.planner.objective import worth_of
from policies.speculation.planner.round_inputs import (
    LaneCosts,
    Pairs,
    RoundCosts,
    round_seconds,
    step_of,
)

_LEAST_GAIN = 0.05
"""A request drafts on a lane only for at least this expected gain in tokens; the cost models cannot
resolve the costs of smaller gains."""
_SLOPE_OVER = 16
"""The marginal cost of verifying a draft token is averaged over this many tokens."""


class Depths(NamedTuple):
    depth: Ints
    """Levels that each pair of a request and a lane drafts; 0: none."""
    gain: Floats
    """Expected tokens of each pair."""
    nodes: Floats
    """Expected draft tokens of each lane."""
    drafting_s: Floats
    """Drafting time of each lane."""


class _Levels(NamedTuple):
    pair: Ints
    level: Ints
    gain: Floats
    worth: Floats
    urgent: int


@njit(cache=True)
def best_depths(
    fair: bool,
    pairs: Pairs,
    lanes: LaneCosts,
    width: Ints,
    requests: Requests,
    costs: RoundCosts,
) -> Depths:
    """The levels to draft; `width`: that of each lane's drafts."""
    levels = _sorted_levels(fair, pairs, lanes, width, requests, costs)
    items = Items(pairs.request[levels.pair], levels.gain, levels.worth, levels.urgent)
    seconds, charged_s = _seconds(levels, pairs, lanes, width, requests, costs)
    taken = best_prefix(fair, items, requests, seconds, charged_s)
    depth, gain = np.zeros(len(pairs.request), np.int64), np.zeros(len(pairs.request))
    for at in range(taken):
        depth[levels.pair[at]] += 1
        gain[levels.pair[at]] += levels.gain[at]
    drafts = gain >= _LEAST_GAIN
    return _summed(depth * drafts, gain * drafts, pairs, lanes, width, requests)


@njit(cache=True)
def _sorted_levels(
    fair: bool,
    pairs: Pairs,
    lanes: LaneCosts,
    width: Ints,
    requests: Requests,
    costs: RoundCosts,
) -> _Levels:
    """All levels by descending worth per second, cut off where the verification has no more
    room."""
    beside_s = round_seconds(costs, 0.0, 0.0)
    node_s = (round_seconds(costs, _SLOPE_OVER, 0.0) - beside_s - costs.overhead_s) / _SLOPE_OVER
    sharing = np.bincount(pairs.lane, minlength=len(width))
    total = pairs.deepest.sum()
    of_pair, number = np.empty(total, np.int64), np.empty(total, np.int64)
    owner, urgent = np.empty(total, np.int64), np.empty(total, np.bool_)
    gains, worths, rates = np.empty((3, total))
    at = 0
    for pair in range(len(pairs.request)):
        request, lane = pairs.request[pair], pairs.lane[pair]
        step = step_of(lanes, lane)
        seconds = step.gamma * width[lane] + step.alpha * requests.context[request]
        seconds += step.delta / sharing[lane] + pairs.found[pair] * width[lane] * node_s
        more = pairs.added[pair] * pairs.first[pair]
        gain, rate = 0.0, np.inf
        for level in range(pairs.deepest[pair]):
            worth = requests.weight[request] * worth_of(fair, gain, more)
            rate = min(rate, worth / max(seconds, 1e-9))  # a level never precedes its parent
            of_pair[at], number[at], owner[at] = pair, level, request
            gains[at], worths[at], rates[at] = more, worth, rate
            urgent[at] = gain < requests.min_gain[request]
            gain += more
            more *= pairs.next[pair]
            at += 1
    order = item_order(rates, owner, urgent, requests.need)
    room, fitting = costs.room, 0
    while fitting < total and room >= width[pairs.lane[of_pair[order[fitting]]]]:
        room -= width[pairs.lane[of_pair[order[fitting]]]]
        fitting += 1
    order = order[:fitting]
    return _Levels(
        of_pair[order], number[order], gains[order], worths[order], min(urgent.sum(), fitting)
    )


@njit(cache=True)
def _seconds(
    levels: _Levels,
    pairs: Pairs,
    lanes: LaneCosts,
    width: Ints,
    requests: Requests,
    costs: RoundCosts,
) -> tuple[Floats, Floats]:
    """The round's time with the first 0, 1, 2, ... levels, and the time charged in the objective.

    The charge leaves out part of the time for processing unread committed tokens, because this work
    also spares later rounds.
    """
    count = len(levels.pair)
    drafting_s, spared_s = np.zeros((2, len(width)))
    seconds, charged_s = np.empty((2, count + 1))
    seconds[0] = charged_s[0] = round_seconds(costs, 0.0, 0.0)
    lane_s = _lane_seconds(levels.pair, levels.level, pairs, lanes, width, requests)
    # Local names, because in a compiled loop each access to an array inside a tuple costs as much
    # as the rest of the iteration.
    of_pair, number, lane_of, found = levels.pair, levels.level, pairs.lane, pairs.found
    unread, rounds_left, step = pairs.unread, pairs.rounds_left, lanes.step
    nodes = 0.0
    for at in range(count):
        pair = of_pair[at]
        lane = lane_of[pair]
        drafting_s[lane] = lane_s[at]
        if number[at] == 0:
            later = 1.0 - 1.0 / rounds_left[pair]
            spared_s[lane] += step[lane, 1] * (unread[pair] - 1.0) * later
        nodes += found[pair] * width[lane]
        # The minimum above 0 counts the overhead of a round with drafts even if lookups find
        # nothing.
        verified_s = round_seconds(costs, max(nodes, 1e-9), 0.0)
        longest_s = charged = 0.0
        for other in range(len(width)):
            longest_s = max(longest_s, drafting_s[other])
            charged = max(charged, drafting_s[other] - spared_s[other])
        seconds[at + 1], charged_s[at + 1] = verified_s + longest_s, verified_s + charged
    return seconds, charged_s


@njit(cache=True)
def _lane_seconds(
    of_pair: Ints, number: Ints, pairs: Pairs, lanes: LaneCosts, width: Ints, requests: Requests
) -> Floats:
    """The drafting time of each level's lane, with this level and those before it."""
    deepest = pairs.deepest.max() if len(pairs.deepest) else 0
    context, tokens = np.zeros((2, len(width), deepest))
    drafting_s, after = np.zeros(len(width)), np.empty(len(of_pair))
    lane_of, request_of, unread, call_s = pairs.lane, pairs.request, pairs.unread, lanes.call_s
    committed = requests.context
    for at in range(len(of_pair)):
        pair, level = of_pair[at], number[at]
        lane = lane_of[pair]
        step = step_of(lanes, lane)
        if tokens[lane, level] > 0.0:
            drafting_s[lane] -= forward_seconds(step, context[lane, level], tokens[lane, level])
        elif level == 0:
            drafting_s[lane] += call_s[lane]
        context[lane, level] += committed[request_of[pair]] + level
        tokens[lane, level] += width[lane] if level else unread[pair]
        drafting_s[lane] += forward_seconds(step, context[lane, level], tokens[lane, level])
        after[at] = drafting_s[lane]
    return after


@njit(cache=True)
def _summed(
    depth: Ints, gain: Floats, pairs: Pairs, lanes: LaneCosts, width: Ints, requests: Requests
) -> Depths:
    total = depth.sum()
    of_pair, number = np.empty(total, np.int64), np.empty(total, np.int64)
    nodes, drafting_s = np.zeros((2, len(width)))
    at = 0
    for pair in range(len(depth)):
        nodes[pairs.lane[pair]] += pairs.found[pair] * depth[pair] * width[pairs.lane[pair]]
        for level in range(depth[pair]):
            of_pair[at], number[at] = pair, level
            at += 1
    lane_s = _lane_seconds(of_pair, number, pairs, lanes, width, requests)
    for at in range(total):
        drafting_s[pairs.lane[of_pair[at]]] = lane_s[at]
    return Depths(depth, gain, nodes, drafting_s)
