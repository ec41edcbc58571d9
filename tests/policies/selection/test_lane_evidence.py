"""Evidence on drafters: the request's own, the pooled one, and how both decay."""

import numpy as np
import pytest

from policies.selection.lane_evidence import PLAIN, Evidence

NEW, OTHER = 0, 1
"""Requests, by row."""
NO_ERRORS = np.zeros((2, 8))


def evidence(prior_slots: float = 4.0, own: float = 1.0, pool: float = 1.0) -> Evidence:
    seen = Evidence(prior_slots, own, pool)
    seen.reserve(2)
    return seen


def goodput(seen: Evidence, row: int, drafter: str) -> float:
    number = seen.number(drafter)
    return float(seen.goodput(np.array([row]), NO_ERRORS, 0.0)[0, number])


def test_goodput_is_tokens_over_seconds_not_the_mean_of_ratios() -> None:
    seen = evidence(prior_slots=1e-9)
    seen.observe_score(NEW, "x", tokens=1.0, seconds=0.1)
    seen.observe_score(NEW, "x", tokens=5.0, seconds=0.1)
    seen.observe_score(NEW, "x", tokens=3.0, seconds=0.4)
    assert goodput(seen, NEW, "x") == pytest.approx(9 / 0.6)


def test_own_evidence_weighs_as_much_as_pooled_evidence_after_prior_slots() -> None:
    seen = evidence()
    for _ in range(100_000):
        seen.observe_score(OTHER, "x", tokens=2.0, seconds=0.1)
    assert goodput(seen, NEW, "x") == pytest.approx(20.0)
    for _ in range(4):
        seen.observe_score(NEW, "x", tokens=4.0, seconds=0.1)
    assert goodput(seen, NEW, "x") == pytest.approx(30.0, rel=1e-3)


def test_an_untried_drafter_is_estimated_as_an_average_one() -> None:
    seen = evidence()
    assert goodput(seen, NEW, "x") == goodput(seen, NEW, "y")
    seen.observe_score(OTHER, "x", tokens=2.0, seconds=0.1)
    seen.observe_score(OTHER, "y", tokens=4.0, seconds=0.1)
    assert goodput(seen, NEW, "z") == pytest.approx(30.0)


def test_one_bad_score_changes_the_estimates_of_other_drafters_little() -> None:
    """Their prior is plain decoding: otherwise requests would decode plainly for long because one
    lane had drafted one wrong token."""
    seen = evidence()
    for _ in range(100):
        seen.observe_slot(OTHER, PLAIN, 1.0, 0.01)
    seen.observe_score(OTHER, "x", tokens=1.0, seconds=0.02)
    assert 80.0 < goodput(seen, NEW, "y") < 100.0


def test_a_score_counts_for_its_number_of_slots() -> None:
    once, often = evidence(), evidence()
    for seen in (once, often):
        seen.observe_score(NEW, "x", tokens=1.0, seconds=0.1)
    once.observe_score(NEW, "x", tokens=3.0, seconds=0.1, slots=9.0)
    for _ in range(9):
        often.observe_score(NEW, "x", tokens=3.0, seconds=0.1)
    assert goodput(once, NEW, "x") == pytest.approx(goodput(often, NEW, "x"))


def test_pooled_evidence_decays_with_the_slots_of_all_requests() -> None:
    """A drafter had 60 tokens/s for 2,000 slots, and has 20 now."""
    seen = evidence(pool=0.999)
    for slots, tokens in ((2_000, 6.0), (1_000, 2.0)):
        for _ in range(slots):
            seen.observe_slot(OTHER, "x", tokens, 0.1)
    assert goodput(seen, NEW, "x") == pytest.approx(33.4, abs=0.5)


def test_pooled_evidence_counts_only_under_the_load_where_it_was_observed() -> None:
    """Slow slots with sixteen requests would make x look bad where one request runs."""
    seen = evidence()
    seen.set_load(16)
    for _ in range(100):
        seen.observe_slot(OTHER, "x", 1.0, 0.1)
    seen.set_load(1)
    seen.observe_slot(OTHER, "y", 3.0, 0.1)
    assert goodput(seen, NEW, "x") == pytest.approx(30.0), "unknown: an average one"
    for about_sixteen in (13, 16, 20):
        seen.set_load(about_sixteen)
        assert goodput(seen, NEW, "x") == pytest.approx(10.0)


def test_other_replicas_evidence_is_pooled_by_load_and_ignored_in_another_format() -> None:
    other, seen = evidence(), evidence()
    other.set_load(16)
    other.observe_slot(OTHER, "x", 1.0, 0.1)
    other.set_load(1)
    other.observe_slot(OTHER, "x", 3.0, 0.1)
    seen.pool(other.export())
    for requests, expected in ((16, 10.0), (1, 30.0)):
        seen.set_load(requests)
        assert goodput(seen, NEW, "x") == pytest.approx(expected)
    seen.pool({name: vector[:3] for name, vector in other.export().items()})
    assert goodput(seen, NEW, "x") == goodput(seen, NEW, PLAIN)


def test_many_slots_of_one_request_count_less_than_one_slot_each_of_many() -> None:
    one, many = evidence(), evidence()
    many.reserve(20)
    for row in range(20):
        one.observe_score(OTHER, "x", tokens=2.0, seconds=0.1)
        many.observe_score(row, "x", tokens=2.0, seconds=0.1)
    number = one.number("x")
    assert many.effective_requests()[number] == 20.0
    assert 1.0 < one.effective_requests()[number] < 4.0
    draws = np.ones((2, 8))
    estimates = [seen.goodput(np.array([NEW]), draws, 0.5)[0, number] for seen in (one, many)]
    assert estimates[0] > 1.1 * estimates[1]


def test_other_replicas_request_counts_are_pooled_and_ignored_in_another_format() -> None:
    other, seen = evidence(), evidence()
    other.observe_score(OTHER, "x", tokens=2.0, seconds=0.1)
    seen.pool(other.export())
    number = seen.number("x")
    assert seen.effective_requests()[number] == 1.0
    seen.pool({name: [*vector, 0.0] for name, vector in other.export().items()})
    assert seen.effective_requests()[number] == 0.0


def test_until_measured_plain_decoding_is_estimated_by_rounds_without_their_drafting() -> None:
    seen = evidence()
    seen.observe_slot(OTHER, "x", 2.0, 0.1, 1.0, 0.05)
    assert goodput(seen, NEW, PLAIN) == pytest.approx(20.0)
    for _ in range(400):
        seen.observe_slot(OTHER, PLAIN, 1.0, 0.025)
    assert goodput(seen, NEW, PLAIN) == pytest.approx(40.0, rel=0.02)


def test_tokens_that_free_drafters_also_proposed_are_not_credited_to_the_lane() -> None:
    """Three of four tokens of a round were found by lookup as well."""
    seen = evidence()
    for _ in range(100):
        seen.observe_slot(OTHER, "x", 4.0, 0.1, 4.0, 0.08)
    assert goodput(seen, NEW, PLAIN) > goodput(seen, NEW, "x")


def test_evidence_that_has_decayed_counts_as_none() -> None:
    seen = evidence(own=0.1, pool=0.1)
    seen.observe_slot(NEW, "x", 2.0, 0.1, 1.0, 0.05)
    for _ in range(400):
        seen.observe_slot(NEW, None)
    assert goodput(seen, NEW, "x") == goodput(seen, NEW, PLAIN) == 1.0


def test_a_forgotten_row_has_no_evidence() -> None:
    seen = evidence()
    for _ in range(10):
        seen.observe_score(OTHER, "x", tokens=2.0, seconds=0.1)
        seen.observe_score(NEW, "x", tokens=8.0, seconds=0.1)
    before = goodput(seen, NEW, "x")
    seen.forget(NEW)
    assert before > 60.0
    assert goodput(seen, NEW, "x") == pytest.approx(50.0)
