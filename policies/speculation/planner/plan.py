"""What a plan thinks, in one compiled call: each way in and out of compiled code costs about as
much as what most of these steps compute."""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import forward_seconds
from policies.estimates.acceptance import Belief, Tables, believed, level_accepted
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.best_prefix import no_caps
from policies.speculation.planner.draft_depths import Beginning, begin
from policies.speculation.planner.draft_widths import best_widths, sibling_shares
from policies.speculation.planner.no_harm import (
    Accounts,
    Trusted,
    caps_of,
    power_of,
    trust_of,
    weights_of,
)
from policies.speculation.planner.round_inputs import (
    Calls,
    Chances,
    RoundCosts,
    everyone,
    of_lanes,
    reach_of,
    round_seconds,
)
from policies.speculation.slo import (
    BatchProgress,
    context_lengths,
    draft_tokens_left_at,
    without_tpot,
)

_READING_LASTS = 16
"""Rounds, at most, on which what it takes to read up is spread: what has been read stays known."""


WANTED = 3
"""The row of `Thought.lanes` with what the throughput objective wants."""


class Asked(NamedTuple):
    """Who may draft where: pairs of a request and a lane, lane behind lane."""

    starts: Ints
    """Lane l has the pairs from starts[l] up to starts[l + 1]."""
    request: Ints
    unread: Floats
    calls: Floats
    """By lane, rows of `call_rows`."""
    numbers: Ints
    """Of the lanes among the beliefs."""
    ranks: Floats
    """[lane, rank]: what its calibration has seen of siblings."""


class Aims(NamedTuple):
    fair: bool
    """Else the throughput objective, without promises."""
    max_depth: int
    max_width: int
    now: float
    usual_s: float
    """How long a round takes."""
    priced: bool
    """Whether to say what fairness costs. That is said as well where nobody is to draft."""


class Thought(NamedTuple):
    depth: Ints
    """Of each pair; 0: it does not draft."""
    deepest: Ints
    """Levels for which each pair has room."""
    prospects: Floats
    """[lane]: rows of what each request may expect of it (round_inputs.py)."""
    lanes: Floats
    """Nodes, seconds of drafting, widths, and nodes under the throughput objective where those were
    asked for, by lane."""
    read: float
    """Committed tokens of the whole batch."""
    weights: float
    """Of all requests together."""
    power: float
    """Of the objective."""
    plain_s: float
    """What the round takes if nobody drafts."""
    price: float
    """Of fairness: the share of tokens by which the throughput objective would be ahead."""


@njit(cache=True)
def think(
    rows: Ints,
    standing: BatchProgress,
    asked: Asked,
    beliefs: Tables,
    trusted: Trusted,
    accounts: Accounts,
    costs: RoundCosts,
    aims: Aims,
) -> Thought:
    """`costs`: but for what is to be read and the weights."""
    requests, lanes = len(rows), len(asked.calls)
    promised = without_tpot(standing) if aims.fair else np.zeros(requests, np.bool_)
    weight, power = weights_of(rows, promised, accounts), power_of(aims.fair, accounts)
    context = context_lengths(standing)
    costs = _with(costs, context.sum(), weight.sum())
    plain_s = costs.waiting_s + forward_seconds(costs.verify, costs.read, costs.fixed)

    lane = _lane_of_pairs(asked)
    belief = believed(beliefs, rows, asked.request, lane, asked.numbers)
    shares = np.empty((lanes, aims.max_width))
    for number in range(lanes):
        wrong = 1.0 - level_accepted(beliefs, asked.numbers[number])
        shares[number] = sibling_shares(wrong, asked.ranks[number], aims.max_width)
    widths = best_widths(
        asked.starts,
        asked.request,
        belief,
        context,
        shares,
        requests,
        asked.calls,
        costs,
        power,
        aims.max_depth,
    )
    chances = _chances(asked, lane, belief, standing, trust_of(rows, trusted), aims.max_depth)
    no_harm = caps_of(rows, promised, plain_s, accounts) if aims.fair else no_caps(requests)
    reach = reach_of(chances, requests, aims.max_depth)
    verdict_s = aims.now + max(plain_s, aims.usual_s)
    waiting = everyone(standing, context, reach, no_harm, weight, aims.now, verdict_s)
    calls = Calls(asked.calls, widths)
    begun = begin(chances, calls, waiting, costs, power)
    price, wanted = 0.0, np.zeros(lanes)
    if aims.fair and (aims.priced or begun.depth.max() == 0):
        ones = np.ones(requests)
        free = everyone(standing, context, reach, no_caps(requests), ones, aims.now, verdict_s)
        freely = begin(chances, calls, free, _with(costs, costs.read, ones.sum()), 1.0)
        price = max(0.0, 1.0 - _rate(begun, requests, costs) / _rate(freely, requests, costs))
        wanted = freely.nodes
    prospects = of_lanes(waiting, chances, begun.depth, begun.gain, lanes)
    told = np.empty((4, lanes))
    told[0], told[1], told[2], told[3] = begun.nodes, begun.drafting_s, widths, wanted
    return Thought(
        begun.depth,
        chances.deepest,
        prospects,
        told,
        costs.read,
        costs.weights,
        power,
        plain_s,
        price,
    )


@njit(cache=True)
def _rate(begun: Beginning, requests: int, costs: RoundCosts) -> float:
    """Tokens per second of all together, as expected."""
    seconds = round_seconds(costs, begun.nodes.sum(), begun.drafting_s.max())
    return (requests + begun.gain.sum()) / seconds


@njit(cache=True)
def _lane_of_pairs(asked: Asked) -> Ints:
    lanes = np.empty(len(asked.request), np.int64)
    for lane in range(len(asked.calls)):
        for pair in range(asked.starts[lane], asked.starts[lane + 1]):
            lanes[pair] = lane
    return lanes


@njit(cache=True)
def _chances(
    asked: Asked, lane: Ints, belief: Belief, standing: BatchProgress, trust: Floats, max_depth: int
) -> Chances:
    pairs = len(lane)
    added, lasting, deepest = np.empty(pairs), np.empty(pairs), np.empty(pairs, np.int64)
    for pair, request in enumerate(asked.request):
        added[pair] = trust[request] * belief.added[pair]
        left = draft_tokens_left_at(standing, request)
        # Rounds with drafts commit several tokens each.
        lasting[pair] = min(max(left / 4.0, 1.0), _READING_LASTS)
        deepest[pair] = int(min(left, max_depth))
    return Chances(
        asked.request,
        lane,
        belief.first,
        belief.acceptance,
        added,
        belief.found,
        asked.unread,
        lasting,
        deepest,
    )


@njit(cache=True)
def _with(costs: RoundCosts, read: float, weights: float) -> RoundCosts:
    return RoundCosts(
        costs.verify,
        costs.draft,
        costs.call_s,
        read,
        costs.fixed,
        costs.waiting_s,
        costs.handling_s,
        costs.elsewhere_s,
        costs.room,
        weights,
    )
