"""The planner's inputs for a round, before anything is drafted."""

from typing import NamedTuple

from numba import njit

from policies.cost import PiecewiseLinear, forward_seconds
from policies.speculation.forest import Floats, Ints


class RoundCosts(NamedTuple):
    """What determines the round's time besides the drafting to be planned; in a lane's step rule,
    other lanes' drafts are included."""

    verify: PiecewiseLinear
    context: float
    """Committed tokens of all requests, which the verification attends to."""
    base_tokens: float
    """Tokens in the verification besides the drafts to be planned."""
    wait_s: float
    overhead_s: float
    """Additional time of a round with drafts (`RoundContext.handling_s`)."""
    other_lanes_s: float
    """Time for which other lanes draft."""
    room: int
    """Draft tokens that the verification has room for."""


@njit(cache=True)
def round_seconds(costs: RoundCosts, nodes: float, drafting_s: float) -> float:
    """Time between two verdicts of a request if `nodes` draft tokens are verified."""
    verify_s = forward_seconds(costs.verify, costs.context, costs.base_tokens + nodes)
    overhead_s = costs.overhead_s if nodes > 0.0 or drafting_s > 0.0 else 0.0
    return max(drafting_s, costs.other_lanes_s) + overhead_s + costs.wait_s + verify_s


class Pairs(NamedTuple):
    """Pairs of a request and a lane that may draft for it, grouped by lane."""

    request: Ints
    lane: Ints
    first: Floats
    """Probability that the first level is accepted."""
    next: Floats
    """Probability that a later level is accepted, given that the one before it is."""
    added: Floats
    """Tokens that the lane adds per accepted token: lookups may propose the same ones."""
    found: Floats
    """Probability that the lane has a draft at all."""
    unread: Floats
    """Committed tokens that the first draft step processes."""
    rounds_left: Floats
    """Rounds over which the cost of processing them is spread."""
    deepest: Ints
    """The most levels, limited by `max_depth` and by what is left of the request's output."""


class LaneCosts(NamedTuple):
    """The drafting costs of each lane."""

    step: Floats
    """A row for each lane: the fields of its step's PiecewiseLinear cost."""
    call_s: Floats
    """Time of a draft call besides its steps."""


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
