"""The overheads of rounds beyond drafting and the forward."""

import random

import pytest

from policies.estimates.overheads import RoundOverheads

FORWARD_S = 0.01


def learned(
    *rounds: tuple[float, bool, set[str]], plain_s: float = 0.0, times: int = 600
) -> RoundOverheads:
    """The overheads after plain rounds and repetitions of `rounds`: the extra time of each, whether
    drafters were called, and which lanes were."""
    overheads = RoundOverheads()
    for _ in range(times):
        overheads.learn(plain_s, FORWARD_S, False, ())
    for _ in range(times):
        for extra_s, drafters_called, lanes in rounds:
            overheads.learn(extra_s, FORWARD_S, drafters_called, lanes)
    return overheads


def test_each_part_is_what_the_others_do_not_explain() -> None:
    overheads = learned(
        (0.0015, True, set()), (0.0025, True, {"near"}), (0.0015, True, {"apart"}), plain_s=0.0005
    )
    assert overheads.plain_s == pytest.approx(0.0005, rel=0.1)
    assert overheads.drafting_extra_s == pytest.approx(0.001, rel=0.1)
    assert overheads.call_extra_s("near") == pytest.approx(0.001, rel=0.1)
    assert overheads.call_extra_s("apart") == pytest.approx(0.0, abs=5e-5)
    assert overheads.call_extra_s("never seen") == 0.0


def test_handling_that_overlaps_with_a_lanes_drafting_is_subtracted() -> None:
    overheads = learned((0.002, True, set()), (0.0, True, {"lane"}))
    assert overheads.drafting_extra_s == pytest.approx(0.002, rel=0.1)
    assert overheads.call_extra_s("lane") == pytest.approx(-0.002, rel=0.1)


def test_noisy_forwards_are_not_mistaken_for_handling() -> None:
    """With a standard deviation of a fifth of a forward, as on shared processors, the estimate
    stays below a tenth of a forward; more would prevent drafts that pay."""
    rng = random.Random(0)
    overheads, worst_s = RoundOverheads(), 0.0
    for number in range(4000):
        overheads.learn(rng.gauss(0.0, FORWARD_S / 5), FORWARD_S, number % 4 > 0, ())
        if number >= 100:
            worst_s = max(worst_s, overheads.drafting_extra_s)
    assert worst_s < FORWARD_S / 10


def test_learned_overheads_decay_while_no_lane_drafts() -> None:
    overheads = learned((0.004, True, set()), (0.006, True, {"lane"}), times=100)
    assert overheads.call_extra_s("lane") > 0.001
    for _ in range(1000):
        overheads.learn(0.0, FORWARD_S, False, set())
    assert overheads.drafting_extra_s < 0.001
    assert overheads.call_extra_s("lane") < 0.0005
