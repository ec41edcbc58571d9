"""What the planner expects of a round before anything is drafted: its costs, and what each request
may gain."""

from typing import NamedTuple

import numpy as np
from numba import njit

from policies.cost import Bent, bent_seconds
from policies.speculation.forest import Floats, Ints
from policies.speculation.prefix import TimeCaps
from policies.speculation.slo import Standing, needs_at, slo_caps


class RoundCosts(NamedTuple):
    """What must be known of the round besides the drafts; in a lane's rule, besides its own."""

    verify: Bent
    draft: Bent
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
    draft_budget: int
    time_price: float = 1.0
    """What the fair objective weighs time with (ledger.py)."""

    def seconds(self, nodes: int, drafting_s: float) -> float:
        """T of the round with so many draft tokens."""
        # As Python: for one number, the way into compiled code takes longer than the sum.
        return round_seconds.py_func(self, float(nodes), drafting_s)


@njit(cache=True)
def round_seconds(costs: RoundCosts, nodes: float, drafting_s: float) -> float:
    verify_s = bent_seconds(costs.verify, costs.read, costs.fixed + nodes)
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


def everyone(
    standing: Standing, reach: Floats, no_harm: TimeCaps, now: float, verdict_s: float
) -> Floats:
    """`reach`: what each request could gain at most; `verdict_s`: when the next verdict is to be
    expected."""
    return _everyone(standing, reach, no_harm, now, verdict_s)


@njit(cache=True)
def _everyone(
    standing: Standing, reach: Floats, no_harm: TimeCaps, now: float, verdict_s: float
) -> Floats:
    needs = needs_at(standing, verdict_s) - 1.0
    within_reach = needs <= reach
    slope, offset = slo_caps(standing, now)
    # What is out of reach is lost in this round, whatever it costs the others.
    offset = np.where(within_reach, offset, np.inf)
    return np.stack(
        (
            standing.context,
            needs,
            np.where(within_reach, np.maximum(needs, 0.0), 0.0),
            np.where(np.isnan(standing.tpot_s), 0.0, standing.tpot_s),
            slope + no_harm.slope,
            np.minimum(offset, no_harm.offset),
        )
    )


@njit(cache=True)
def everyone_in(rows: Floats) -> Everyone:
    return Everyone(rows[0], rows[1], rows[2], rows[3], rows[4], rows[5])


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
def of_lane(
    everyone: Floats,
    at: Ints,
    unread: Floats,
    acceptance: Floats,
    trust: Floats,
    elsewhere: Floats,
) -> Floats:
    """Rows of Prospects. `at`: the places of the lane's requests in the round."""
    rows = np.zeros((10, everyone.shape[1]))
    rows[:6] = everyone
    rows[6][at] = unread
    rows[7][at] = acceptance
    rows[8][at] = trust
    rows[9] = elsewhere
    return rows


@njit(cache=True)
def prospects_in(rows: Floats) -> Prospects:
    return Prospects(everyone_in(rows), rows[6], rows[7], rows[8], rows[9])


@njit(cache=True)
def chain(acceptance: Floats, levels: int) -> Floats:
    """What a chain of so many levels brings for each accepted first one."""
    level, chain = np.ones_like(acceptance), np.zeros_like(acceptance)
    for _ in range(levels):
        chain += level
        level *= acceptance
    return chain
