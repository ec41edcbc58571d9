"""What the planner expects of a round before anything is drafted: its costs, and what each request
may gain."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import Bent, bent_seconds
from policies.speculation.forest import Floats
from policies.speculation.prefix import TimeCaps
from policies.speculation.slo import Standing, needs_at, slo_caps


class RoundCosts(NamedTuple):
    """What the rule must know of the round besides the drafts."""

    verify: Bent
    draft: Bent
    """One step of this lane."""
    read: float
    """Committed tokens of the whole batch."""
    fixed: int
    """Tokens that are verified anyway: roots, and what rides along."""
    waiting_s: float
    handling_s: float
    """Of a round with drafts."""
    room: int
    """Draft tokens that the verification has room for."""
    draft_budget: int

    def seconds(self, nodes: int, drafting_s: float) -> float:
        """T of the round with so many draft tokens."""
        # As Python: for one number, the way into compiled code takes longer than the sum.
        return round_seconds.py_func(self, float(nodes), drafting_s)


@njit(cache=True)
def round_seconds(costs: RoundCosts, nodes: float, drafting_s: float) -> float:
    verify_s = bent_seconds(costs.verify, costs.read, costs.fixed + nodes)
    handling_s = costs.handling_s if nodes > 0.0 else 0.0
    return drafting_s + handling_s + costs.waiting_s + verify_s


class Prospects(NamedTuple):
    """What each request of the batch may expect, as arrays.

    A rule holds them as the rows of one array (`prospects_in`): the way into compiled code looks
    at each array anew, in every draft step, and so does whoever sends the rule to a drafter.
    """

    context: Floats
    unread: Floats
    """Tokens that the first draft step reads."""
    first: Floats
    """Acceptance of the first level."""
    acceptance: Floats
    """Of each later one, given that the one before is accepted."""
    needs: Floats
    """What A(r) asks beyond the target's own token; -inf: nothing."""
    promised: Floats
    """The gain that each request will have when drafting ends, if its needs are pursued."""
    token_s: Floats
    """What a token sooner is worth to an SLO."""
    trust: Floats
    """Tokens that this lane adds per token that its confidences promise."""
    caps: TimeCaps


def prospects(
    standing: Standing,
    unread: Sequence[int],
    first: Floats,
    acceptance: Floats,
    trust: Floats,
    no_harm: TimeCaps,
    now: float,
    verdict_s: float,
    depth: int,
) -> Floats:
    """`verdict_s`: when the next one is to be expected; `depth`: the greatest."""
    reads = np.array(unread, np.float64) if unread else np.ones(len(acceptance))
    return _prospects(standing, reads, first, acceptance, trust, no_harm, now, verdict_s, depth)


@njit(cache=True)
def _prospects(
    standing: Standing,
    unread: Floats,
    first: Floats,
    acceptance: Floats,
    trust: Floats,
    no_harm: TimeCaps,
    now: float,
    verdict_s: float,
    depth: int,
) -> Floats:
    needs = needs_at(standing, verdict_s) - 1.0
    within_reach = needs <= first * chain(acceptance, depth)
    slope, offset = slo_caps(standing, now)
    # What is out of reach is lost in this round, whatever it costs the others.
    offset = np.where(within_reach, offset, np.inf)
    return np.stack(
        (
            standing.context,
            unread,
            first,
            acceptance,
            needs,
            np.where(within_reach, np.maximum(needs, 0.0), 0.0),
            np.where(np.isnan(standing.tpot_s), 0.0, standing.tpot_s),
            trust,
            slope + no_harm.slope,
            np.minimum(offset, no_harm.offset),
        )
    )


@njit(cache=True)
def prospects_in(rows: Floats) -> Prospects:
    caps = TimeCaps(rows[8], rows[9])
    return Prospects(rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7], caps)


@njit(cache=True)
def chain(acceptance: Floats, levels: int) -> Floats:
    """What a chain of so many levels brings for each accepted first one."""
    level, chain = np.ones_like(acceptance), np.zeros_like(acceptance)
    for _ in range(levels):
        chain += level
        level *= acceptance
    return chain
