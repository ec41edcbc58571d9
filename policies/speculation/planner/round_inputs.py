"""What the planner knows of a round before anything is drafted."""

from typing import NamedTuple

from numba import njit

from policies.cost import PiecewiseLinear, forward_seconds
from policies.speculation.forest import Floats, Ints


class RoundCosts(NamedTuple):
    """The round's time besides drafting; in a lane's rule, other lanes' drafts included."""

    verify: PiecewiseLinear
    context: float
    """Committed tokens that the verification reads."""
    base_tokens: float
    """Tokens that are verified in any case."""
    wait_s: float
    overhead_s: float
    """Of a round that drafts."""
    elsewhere_s: float
    """For which other lanes draft."""
    room: int
    """Draft tokens that the verification has room for."""


@njit(cache=True)
def round_seconds(costs: RoundCosts, nodes: float, drafting_s: float) -> float:
    """Between two verdicts of a request, with so many draft tokens verified."""
    verify_s = forward_seconds(costs.verify, costs.context, costs.base_tokens + nodes)
    overhead_s = costs.overhead_s if nodes > 0.0 or drafting_s > 0.0 else 0.0
    return max(drafting_s, costs.elsewhere_s) + overhead_s + costs.wait_s + verify_s


class Pairs(NamedTuple):
    """A request and a lane that may draft for it, lane behind lane."""

    request: Ints
    lane: Ints
    first: Floats
    """Probability that the first level is accepted."""
    next: Floats
    """Of each later level, given that the one before is accepted."""
    added: Floats
    """Tokens that the lane adds per token accepted: others may propose the same."""
    found: Floats
    """Probability that the lane has a draft at all."""
    unread: Floats
    """Committed tokens that the first draft step reads."""
    rounds_left: Floats
    """In which having read them pays."""
    deepest: Ints
    """Levels that the request's output has room for."""


class LaneCosts(NamedTuple):
    """Of each lane."""

    step: Floats
    """A row of the fields of a step's cost."""
    call_s: Floats
    """What a call takes besides its steps."""


@njit(cache=True, inline="always")
def step_of(costs: LaneCosts, lane: int) -> PiecewiseLinear:
    step = costs.step
    return PiecewiseLinear(
        step[lane, 0],
        step[lane, 1],
        step[lane, 2],
        step[lane, 3],
        step[lane, 4],
        step[lane, 5],
        step[lane, 6],
    )
