"""Which slots count for a drafter's goodput, and what requires a new mapping."""

from policies.request import LaneView, RoundOutcome
from policies.selection.membership import Membership
from tests.policies.selection.play import requests

LANE = LaneView("x", "drafter", capacity=4, catch_up_s=1e-3)
ROUND = RoundOutcome("r", "x", 4, 4, 1, 2, seconds=0.1, draft_s=0.03)


def test_refined_costs_and_another_order_do_not_count_as_a_change() -> None:
    membership, here = Membership(), requests("r", "s")
    assert membership.changed(here, [LANE])
    assert not membership.changed(here[::-1], [LaneView("x", "drafter", 4, catch_up_s=2e-3)])
    assert membership.lanes["x"].catch_up_s == 2e-3
    assert membership.changed(here, [LaneView("x", "drafter", 5)])
    assert membership.changed(here, [LaneView("x", "another", 5)])
    assert membership.changed(here[:1], [LaneView("x", "another", 5)])


def test_the_first_slot_after_a_request_has_joined_has_no_slot_time() -> None:
    """It includes the prefill, or the time for which the request was preempted."""
    membership, here = Membership(), requests("r", "s")
    membership.changed(here, [LANE])
    assert membership.slot(ROUND)[1] is None
    assert membership.slot(ROUND)[1] == ROUND.seconds
    membership.changed(here[1:], [LANE])
    membership.changed(here, [LANE])
    assert membership.slot(ROUND)[1] is None
    assert membership.slot(ROUND)[1] == ROUND.seconds


def test_catch_up_is_subtracted_from_slot_time_up_to_the_drafting_time() -> None:
    membership = Membership()
    membership.changed(requests("r"), [LANE])
    membership.slot(ROUND)
    moved = RoundOutcome("r", "x", 4, 4, 1, 2, seconds=0.1, draft_s=0.03, caught_up=20)
    assert membership.slot(moved)[1] == 0.1 - 0.02
    far = RoundOutcome("r", "x", 4, 4, 1, 2, seconds=0.1, draft_s=0.03, caught_up=500)
    assert membership.slot(far)[1] == 0.1 - 0.03


def test_the_drafter_of_a_lane_that_has_left_is_unknown() -> None:
    membership, here = Membership(), requests("r")
    membership.changed(here, [LANE])
    assert membership.slot(ROUND)[0] == "drafter"
    membership.changed(here, [])
    assert membership.slot(ROUND)[0] is None
