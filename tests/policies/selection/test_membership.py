"""What is asked of a lane's goodput, and what counts as a change."""

from policies.request import LaneView, RoundOutcome
from policies.selection.membership import Membership
from tests.policies.selection.play import requests

LANE = LaneView("x", "drafter", capacity=4, catch_up_s=1e-3)
ROUND = RoundOutcome("r", "x", 4, 4, 1, 2, seconds=0.1, draft_s=0.03)


def test_refined_costs_and_another_order_are_no_change() -> None:
    roster, here = Membership(), requests("r", "s")
    assert roster.changed(here, [LANE])
    assert not roster.changed(here[::-1], [LaneView("x", "drafter", 4, catch_up_s=2e-3)])
    assert roster.lanes["x"].catch_up_s == 2e-3
    assert roster.changed(here, [LaneView("x", "drafter", 5)])
    assert roster.changed(here, [LaneView("x", "another", 5)])
    assert roster.changed(here[:1], [LaneView("x", "another", 5)])


def test_the_first_slot_of_who_came_or_came_back_is_no_measure_of_a_lane() -> None:
    """It holds the prefill, or the wait of a preempted request."""
    roster, here = Membership(), requests("r", "s")
    roster.changed(here, [LANE])
    assert roster.slot(ROUND)[1] is None
    assert roster.slot(ROUND)[1] == ROUND.seconds
    roster.changed(here[1:], [LANE])
    roster.changed(here, [LANE])
    assert roster.slot(ROUND)[1] is None
    assert roster.slot(ROUND)[1] == ROUND.seconds


def test_catch_up_is_taken_off_the_drafting_that_held_it() -> None:
    roster = Membership()
    roster.changed(requests("r"), [LANE])
    roster.slot(ROUND)
    moved = RoundOutcome("r", "x", 4, 4, 1, 2, seconds=0.1, draft_s=0.03, caught_up=20)
    assert roster.slot(moved)[1] == 0.1 - 0.02
    far = RoundOutcome("r", "x", 4, 4, 1, 2, seconds=0.1, draft_s=0.03, caught_up=500)
    assert roster.slot(far)[1] == 0.1 - 0.03


def test_the_drafter_of_a_lane_that_has_left_is_unknown() -> None:
    roster, here = Membership(), requests("r")
    roster.changed(here, [LANE])
    assert roster.slot(ROUND)[0] == "drafter"
    roster.changed(here, [])
    assert roster.slot(ROUND)[0] is None
