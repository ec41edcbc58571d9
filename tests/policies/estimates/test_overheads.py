"""What rounds are found to take beyond forward and drafting."""

import random

import pytest

from policies.estimates.overheads import RoundOverheads

FORWARD_S = 0.01


def learned(
    *rounds: tuple[float, bool, set[str]], plain_s: float = 0.0, times: int = 600
) -> RoundOverheads:
    """Behind plain rounds, over and over: what a round took beyond, whether drafters were asked,
    and whose lanes were called."""
    handling = RoundOverheads()
    for _ in range(times):
        handling.learn(plain_s, FORWARD_S, False, ())
    for _ in range(times):
        for extra_s, asked, lanes in rounds:
            handling.learn(extra_s, FORWARD_S, asked, lanes)
    return handling


def test_each_part_is_what_the_others_do_not_explain() -> None:
    handling = learned(
        (0.0015, True, set()),
        (0.0025, True, {"near"}),
        (0.0015, True, {"apart"}),
        plain_s=0.0005,
    )
    assert handling.plain_s == pytest.approx(0.0005, rel=0.1)
    assert handling.drafting_extra_s == pytest.approx(0.001, rel=0.1)
    assert handling.call_extra_s("near") == pytest.approx(0.001, rel=0.1)
    assert handling.call_extra_s("apart") == pytest.approx(0.0, abs=5e-5)
    assert handling.call_extra_s("never seen") == 0.0


def test_what_is_handled_while_a_lane_drafts_takes_no_time_of_its_own() -> None:
    handling = learned((0.002, True, set()), (0.0, True, {"lane"}))
    assert handling.drafting_extra_s == pytest.approx(0.002, rel=0.1)
    assert handling.call_extra_s("lane") == pytest.approx(-0.002, rel=0.1)


def test_what_only_comes_together_is_handling_for_the_most_part() -> None:
    handling = learned((0.002, True, {"lane"}), times=60)
    assert handling.drafting_extra_s + handling.call_extra_s("lane") == pytest.approx(
        0.002, rel=0.02
    )
    assert handling.drafting_extra_s > 3 * handling.call_extra_s("lane")


def test_forwards_that_scatter_do_not_look_like_handling() -> None:
    """By a fifth of themselves, by chance, as on shared processors: what is found in that never
    comes near a tenth of a forward, which would end drafts that pay. (Means of the last ten rounds
    found 0.2 at worst.)"""
    chance = random.Random(0)
    handling, worst_s = RoundOverheads(), 0.0
    for number in range(4000):
        handling.learn(chance.gauss(0.0, FORWARD_S / 5), FORWARD_S, number % 4 > 0, ())
        if number >= 100:
            worst_s = max(worst_s, handling.drafting_extra_s)
    assert worst_s < FORWARD_S / 10


def test_one_pause_of_the_whole_process_is_not_what_rounds_take() -> None:
    handling = learned((0.0005, True, {"lane"}))
    handling.learn(30.0, FORWARD_S, True, {"lane"})
    assert handling.drafting_extra_s + handling.call_extra_s("lane") < 0.001


def test_a_bad_spell_is_forgotten_while_nobody_drafts() -> None:
    handling = learned((0.004, True, set()), (0.006, True, {"lane"}), times=100)
    assert handling.call_extra_s("lane") > 0.001
    for _ in range(1000):
        handling.learn(0.0, FORWARD_S, False, set())
    assert handling.drafting_extra_s < 0.001
    assert handling.call_extra_s("lane") < 0.0005
