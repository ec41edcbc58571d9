"""Fixed, and the baselines of Spin's Figure 11."""

import pytest

from policies.request import LaneView
from policies.selection.baselines import (
    EpsilonGreedy,
    EpsilonGreedyParams,
    Fixed,
    FixedParams,
    Greedy,
    SpinEpsilonGreedyParams,
)
from tests.policies.selection.play import CONTEXT, lane, request, requests, slot, table


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


def test_greedy_sends_shorter_prompts_to_smaller_ssms_each_filled_before_the_next() -> None:
    lanes = [lane("1.4B", 2, size=1.4e9), lane("68M", 2, size=68e6)]
    long, short, middle = request("long", 900), request("short", 10), request("middle", 90)
    greedy = Greedy()
    assert greedy.assign([long, short, middle], lanes, CONTEXT, 0.0) == {
        "short": "68M",
        "middle": "68M",
        "long": "1.4B",
    }
    # Spin's own setting: as many places on the smallest as there are requests.
    assert set(greedy.assign([long, short], lanes, CONTEXT, 0.0).values()) == {"68M"}


def test_greedy_leaves_the_longest_without_a_lane_when_all_are_full() -> None:
    chosen = Greedy().assign(
        [request("long", 9), request("short", 1)], [lane("x", 1)], CONTEXT, 0.0
    )
    assert chosen == {"short": "x", "long": None}


@pytest.mark.parametrize(
    ("params", "share"),
    [
        (EpsilonGreedyParams(epsilon=0.1), 0.9 + 0.1 / 4),
        (SpinEpsilonGreedyParams(epsilon=0.2), 0.2 + 0.8 / 4),
    ],
)
def test_epsilon_is_the_probability_of_exploring_and_in_spin_of_exploiting(
    params: EpsilonGreedyParams | SpinEpsilonGreedyParams, share: float
) -> None:
    lanes = [lane(name) for name in "wxyz"]
    truth = table({("r", "w"): 1.0, ("r", "x"): 9.0, ("r", "y"): 3.0, ("r", "z"): 2.0})
    policy = EpsilonGreedy(params)
    chosen = [slot(policy, requests("r"), lanes, truth)["r"] for _ in range(2_000)]
    assert chosen[500:].count("x") / 1_500 == pytest.approx(share, abs=0.05)


def test_exploitation_gives_scarce_places_to_the_requests_that_gain_most() -> None:
    lanes = [lane("x", 1), lane("y", 1)]
    truth = table({("r", "x"): 9.0, ("r", "y"): 2.0, ("s", "x"): 10.0, ("s", "y"): 8.0})
    policy = EpsilonGreedy(EpsilonGreedyParams(epsilon=0.3))
    chosen = [slot(policy, requests("r", "s"), lanes, truth) for _ in range(400)]
    assert chosen[100:].count({"r": "x", "s": "y"}) > 0.5 * 300


def test_a_probability_is_between_0_and_1() -> None:
    with pytest.raises(ValueError, match="probability"):
        EpsilonGreedy(EpsilonGreedyParams(epsilon=1.5))
