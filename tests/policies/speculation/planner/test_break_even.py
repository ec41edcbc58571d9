"""What is said of costs before anything is drafted is what the planner then does."""

import numpy as np
import pytest

from policies.cost import ForwardCost
from policies.speculation.planner.beam_width import best_width
from policies.speculation.planner.break_even import drafted_s, least_gain, longest_draft_s
from policies.speculation.planner.round_costs import RoundCosts

VERIFY = ForwardCost(alpha=2e-6, gamma=0.85e-3, delta=4.5e-3)
STEPS = [ForwardCost(0.0, 0.1e-3, 0.1e-3), ForwardCost(1e-6, 0.3e-3, 0.3e-3)]


def drafts(step: ForwardCost, accepted: float) -> bool:
    """Whether the planner has one request draft, whose first drafted token is accepted so often,
    and none after it."""
    chances = np.array([[accepted], [0.0], [1.0]])
    costs = RoundCosts(VERIFY, 256.0, 1.0, wait_s=0.0, overhead_s=0.0, room=64)
    return best_width(chances, 256.0, np.zeros(1), step, 0.0, costs, 0, 8) > 0


@pytest.mark.parametrize("step", STEPS)
def test_the_planner_drafts_from_the_least_gain_on(step: ForwardCost) -> None:
    least = least_gain(VERIFY, step)
    assert drafts(step, least + 0.01)
    assert not drafts(step, least - 0.01)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_the_longest_time_pays_from_the_gain_it_was_asked_for(step: ForwardCost) -> None:
    assert longest_draft_s(VERIFY, least_gain(VERIFY, step)) == pytest.approx(drafted_s(step))


def test_a_step_as_of_a_bfloat16_kernel_makes_the_second_token_free() -> None:
    stepped = ForwardCost(0.0, 1e-3, 4e-3, step_from=0, step_to=16)
    assert longest_draft_s(stepped, 0.1) == pytest.approx(2e-3)
