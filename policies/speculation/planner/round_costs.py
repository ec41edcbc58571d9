"""What determines the time of a round besides the drafts to be decided on."""

from typing import NamedTuple

from numba import njit

from policies.cost import PiecewiseLinear, forward_seconds


class RoundCosts(NamedTuple):
    verify: PiecewiseLinear
    context: float
    """Committed tokens of all requests, which the verification attends to."""
    base_tokens: float
    """Tokens in the verification besides drafts."""
    wait_s: float
    """Time of every round besides drafting and verification."""
    overhead_s: float
    """Additional time of a round with drafts; where lookups draft anyway, a part of `wait_s`."""
    room: int
    """Draft tokens that the verification has room for."""


@njit(cache=True)
def round_seconds(costs: RoundCosts, nodes: float, drafting_s: float) -> float:
    """Time between two verdicts of a request if `nodes` draft tokens are verified."""
    verify_s = forward_seconds(costs.verify, costs.context, costs.base_tokens + nodes)
    overhead_s = costs.overhead_s if nodes > 0.0 or drafting_s > 0.0 else 0.0
    return drafting_s + overhead_s + costs.wait_s + verify_s
