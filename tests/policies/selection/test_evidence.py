"""Evidence: the request's own, everyone's, and how both fade."""

import pytest

from policies.selection.evidence import PLAIN, Evidence


def evidence(prior_slots: float = 4.0, own: float = 1.0, pool: float = 1.0) -> Evidence:
    return Evidence(prior_slots, own, pool)


def test_goodput_is_tokens_over_seconds_not_the_mean_of_ratios() -> None:
    seen = evidence(prior_slots=1e-9)
    seen.add("r", "x", tokens=1.0, seconds=0.1)
    seen.add("r", "x", tokens=5.0, seconds=0.1)
    seen.add("r", "x", tokens=3.0, seconds=0.4)
    assert seen.goodput("r", "x") == pytest.approx(9 / 0.6)


def test_own_evidence_weighs_as_much_as_everyones_after_prior_slots() -> None:
    seen = evidence()
    for _ in range(100_000):
        seen.add("others", "x", tokens=2.0, seconds=0.1)
    assert seen.goodput("new", "x") == pytest.approx(20.0)
    for _ in range(4):
        seen.add("new", "x", tokens=4.0, seconds=0.1)
    assert seen.goodput("new", "x") == pytest.approx(30.0, rel=1e-3)


def test_a_drafter_that_nobody_has_tried_is_taken_for_an_average_one() -> None:
    seen = evidence()
    assert seen.goodput("r", "x") == seen.goodput("r", "y")
    seen.add("s", "x", tokens=2.0, seconds=0.1)
    seen.add("s", "y", tokens=4.0, seconds=0.1)
    assert seen.goodput("r", "z") == pytest.approx(30.0)


def test_everyones_evidence_fades_with_everyones_slots() -> None:
    """A drafter was worth 60 for 2,000 slots, and is worth 20 now."""
    seen = evidence(pool=0.999)
    for slots, tokens in ((2_000, 6.0), (1_000, 2.0)):
        for _ in range(slots):
            seen.fade("r")
            seen.add("r", "x", tokens, 0.1)
    assert seen.goodput("new", "x") == pytest.approx(33.4, abs=0.5)


def test_plain_decoding_is_bounded_by_rounds_less_their_drafting_until_measured() -> None:
    seen = evidence()
    seen.bound_plain(0.05)
    assert seen.goodput("r", PLAIN) == pytest.approx(20.0)
    for _ in range(400):
        seen.add_plain(1.0, 0.025)
    assert seen.goodput("r", PLAIN) == pytest.approx(40.0, rel=0.02)


def test_evidence_that_has_faded_away_is_as_none() -> None:
    seen = evidence(own=0.1, pool=0.1)
    seen.add("r", "x", tokens=2.0, seconds=0.1)
    seen.bound_plain(0.05)
    for _ in range(400):
        seen.fade("r")
    assert seen.goodput("r", "x") == seen.goodput("r", PLAIN) == 1.0
