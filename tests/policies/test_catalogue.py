"""The catalogue says of each policy what configs are checked against."""

import pytest

from policies.catalogue import SPECULATIONS, make_speculation
from policies.protocols import LaneBatch
from tests.policies.speculation.rounds import round_context, view


@pytest.mark.parametrize("name", SPECULATIONS)
def test_a_policy_that_plans_trees_names_the_option_of_their_width(name: str) -> None:
    """Without it, a config with a verifier of chains would not be refused."""
    batch = LaneBatch("lane", [view("a", tpot_s=0.05), view("b")])
    plans = make_speculation(name).plan([batch], round_context(), 10.0)
    if max(limit.width for plan in plans for limit in plan.limits) > 1:
        assert SPECULATIONS[name].width
