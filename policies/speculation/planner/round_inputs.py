"""What the planner expects of a round before anything is drafted: its costs, and what each request
may gain."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import PiecewiseLinear, forward_seconds
from policies.speculation.forest import Floats, Ints
from policies.speculation.planner.best_prefix import TimeCaps
from policies.speculation.slo import BatchProgress, need_at, slo_cap, tpot_or_zero


class RoundCosts(NamedTuple):
    """What must be known of the round besides the drafts; in a lane's rule, besides its own."""

    verify: PiecewiseLinear
    draft: PiecewiseLinear
    """One step of this lane."""
    call_s: float
    """Of this lane, besides its steps."""
    read: float
    """Committed tokens of the whole batch."""
    fixed: float
    """Tokens that are verified anyway: roots, what rides along, nodes of other lanes."""
    waiting_s: float
    handling_s: float
    """Of a round with drafts."""
    elsewhere_s: float
    """For which other lanes draft."""
    room: int
    """Draft tokens that the verification has room for."""
    weights: float
    """Of all requests together (`Everyone.weight`): what the fair objective weighs log T with."""

    def seconds(self, nodes: int, drafting_s: float) -> float:
        """T of the round with so many draft tokens."""
        # As Python: for one number, the way into compiled code takes longer than the sum.
        return round_seconds.py_func(self, float(nodes), drafting_s)


@njit(cache=True)
def round_seconds(costs: RoundCosts, nodes: float, drafting_s: float) -> float:
    verify_s = forward_seconds(costs.verify, costs.read, costs.fixed + nodes)
    handling_s = costs.handling_s if nodes > 0.0 else 0.0
    return max(drafting_s, costs.elsewhere_s) + handling_s + costs.waiting_s + verify_s


class Everyone(NamedTuple):
    """Who waits for the round's verdict, as arrays. Passed on as the rows of one array."""

    context: Floats
    needs: Floats
    """What A(r) asks beyond the target's own token; -inf: nothing."""
    promised: Floats
    """The gain that each request will have when drafting ends, if its needs are pursued."""
    token_s: Floats
    """What a token sooner is worth to an SLO."""
    slope: Floats
    """Of the caps on the round's time (prefix.TimeCaps)."""
    offset: Floats
    weight: Floats
    """In the fair objective (no_harm.py)."""


_EVERYONE = len(Everyone._fields)


@njit(cache=True)
def everyone(
    standing: BatchProgress,
    context: Floats,
    reach: Floats,
    no_harm: TimeCaps,
    weight: Floats,
    now: float,
    verdict_s: float,
) -> Floats:
    """`reach`: what each request could gain at most; `verdict_s`: when the next verdict is to be
    expected."""
    rows = np.empty((_EVERYONE, len(reach)))
    for number in range(len(reach)):
        need = need_at(standing, number, verdict_s) - 1.0
        slope, offset = slo_cap(standing, number, now)
        promised = max(need, 0.0)
        if need > reach[number]:
            # What is out of reach is lost in this round, whatever it costs the others.
            promised, offset = 0.0, np.inf
        rows[0, number] = context[number]
        rows[1, number] = need
        rows[2, number] = promised
        rows[3, number] = tpot_or_zero(standing, number)
        rows[4, number] = slope + no_harm.slope[number]
        rows[5, number] = min(offset, no_harm.offset[number])
        rows[6, number] = weight[number]
    return rows


@njit(cache=True)
def everyone_in(rows: Floats) -> Everyone:
    return Everyone(rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6])


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


class Calls(NamedTuple):
    """Of each lane, as arrays."""

    step: Floats
    """Rows of `call_rows`."""
    width: Ints


CALL_S = len(PiecewiseLinear._fields)
"""Column behind the fields of a step's cost: what the call takes besides its steps."""


def call_rows(steps: Sequence[PiecewiseLinear], call_s: Sequence[float]) -> Floats:
    """One for each lane."""
    rows = [(*step, besides_s) for step, besides_s in zip(steps, call_s, strict=True)]
    return np.array(rows, np.float64)


@njit(cache=True)
def step_of(call: Floats) -> PiecewiseLinear:
    return PiecewiseLinear(call[0], call[1], call[2], call[3], call[4], call[5], call[6])


class Prospects(NamedTuple):
    """What each request of the round may expect of one lane, as arrays.

    A rule holds them as the rows of one array (`prospects_in`): the way into compiled code looks
    at each array anew, in every draft step, and so does whoever sends the rule to a drafter.
    """

    everyone: Everyone
    unread: Floats
    """Tokens that the first draft step reads."""
    acceptance: Floats
    """Of each level, given that the one before is accepted."""
    trust: Floats
    """Tokens that this lane adds per token that its confidences promise."""
    elsewhere: Floats
    """What other lanes should bring."""


@njit(cache=True)
def of_lanes(everyone: Floats, chances: Chances, depth: Ints, gain: Floats, lanes: int) -> Floats:
    """Rows of Prospects for each lane. `depth` and `gain`: what each pair is about to draft."""
    rows = np.zeros((lanes, 11, everyone.shape[1]))
    rows[:, :7] = everyone
    for pair, request in enumerate(chances.request):
        own = chances.lane[pair]
        rows[own, 7, request] = chances.unread[pair]
        rows[own, 8, request] = chances.acceptance[pair]
        rows[own, 9, request] = chances.trust[pair]
        if depth[pair] > 0:
            for lane in range(lanes):
                rows[lane, 10, request] += gain[pair] if lane != own else 0.0
    return rows


@njit(cache=True)
def prospects_in(rows: Floats) -> Prospects:
    return Prospects(everyone_in(rows), rows[7], rows[8], rows[9], rows[10])


@njit(cache=True)
def reach_of(chances: Chances, requests: int, levels: int) -> Floats:
    """What chains of so many levels on all its lanes would bring each request."""
    reach = np.zeros(requests)
    for pair, request in enumerate(chances.request):
        level, chain = 1.0, 0.0
        for _ in range(levels):
            chain += level
            level *= chances.acceptance[pair]
        reach[request] += chances.first[pair] * chain
    return reach
