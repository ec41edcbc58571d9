"""The room and the time of a verification."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost import ForwardCost
from policies.estimates.online_cost import RefinedCost
from policies.speculation.forest import budgeted_draft_room, draft_room, verify_seconds
from tests.policies.speculation.rounds import SEEDED, round_context


def test_only_budgeted_draft_room_is_limited_by_adaserves_budget() -> None:
    """Policies that weigh the cost of each token need no budget at the knee, which prompts, that no
    selection can save, leave as it is."""
    context = round_context(verify_budget=32, prefill_tokens=10)
    assert budgeted_draft_room(4, context) == 28
    assert budgeted_draft_room(4, context._replace(most_tokens=20)) == 6
    assert draft_room(4, context) == context.most_tokens - 14


@SEEDED
@given(st.integers(0, 300), st.integers(1, 400), st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_verify_seconds_are_the_costs_of_all_numbers_of_draft_tokens(
    most: int, knee: int, gamma: float, gamma_more: float
) -> None:
    """Equal to single predictions, also of refined models."""
    piecewise = ForwardCost(alpha=1e-6, gamma=gamma, delta=5e-3, knee=knee, gamma_more=gamma_more)
    refined = RefinedCost(piecewise)
    refined.observe(500, 20, 0.02)
    for cost in (piecewise, refined):
        seconds = verify_seconds(round_context(verify=cost, prefill_tokens=3), 500, 4, most)
        each = [cost.predict(500, 7 + drafts) for drafts in range(most + 1)]
        assert seconds == pytest.approx(each, rel=1e-7)
