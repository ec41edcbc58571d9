"""One drafter for all requests."""

from policies.request import LaneView
from policies.selection.fixed import Fixed, FixedParams
from tests.policies.selection.play import CONTEXT, lane, requests


def test_fixed_fills_only_the_lanes_of_its_drafter_and_evenly() -> None:
    lanes = [LaneView("x1", "x", 3), LaneView("y1", "y", 9), LaneView("x2", "x", 3)]
    chosen = Fixed(FixedParams("x")).assign(requests(*"rstuvwz"), lanes, CONTEXT, 0.0)
    assert sorted(map(str, chosen.values())) == ["None", "x1", "x1", "x1", "x2", "x2", "x2"]
    assert sorted(map(str, Fixed().assign(requests("r", "s"), lanes, CONTEXT, 0.0).values())) == [
        "x1",
        "x2",
    ]


def test_fixed_keeps_assigned_places_and_gives_free_ones_to_waiting_requests() -> None:
    policy, one = Fixed(), [lane("x", 1)]
    r, s = requests("r", "s")
    assert policy.assign([r, s], one, CONTEXT, 0.0) == {"r": "x", "s": None}
    assert policy.assign([s, r], one, CONTEXT, 0.0) == {"r": "x", "s": None}
    policy.forget("r")
    assert policy.assign([s], one, CONTEXT, 0.0) == {"s": "x"}
