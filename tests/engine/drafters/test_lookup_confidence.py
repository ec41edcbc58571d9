"""A lookup's confidences follow how often such evidence turned out right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drafters.lookup import NgramDrafter, SuffixDrafter
from engine.drafters.lookup_confidence import (
    NO_EVIDENCE,
    PAST,
    LookupCalibration,
    confidence_of,
    evidence_kind,
    initial_weights,
    update_weights,
)
from engine.scopes import SHARED
from tests.engine.drafters.orders import Stream

SHORT = evidence_kind(3, 1, 1)
LONG = evidence_kind(7, 2, 2)
FIVE = np.array([5], np.int32)


def propose_and_commit(
    calibration: LookupCalibration, tokens: list[int], kinds: list[int], following: list[int]
) -> None:
    """A chain after two tokens, on evidence of the own text alone, then what was committed."""
    evidence = np.array([(kind, NO_EVIDENCE) for kind in kinds], np.int16)
    calibration.record("a", 2, np.array(tokens, np.int32), evidence)
    calibration.update("a", [1, 2, *following], unchanged=2)


def test_initially_longer_and_unanimous_matches_have_more_confidence() -> None:
    weights = initial_weights()
    one, long, unanimous, divided = [
        confidence_of(weights, evidence_kind(*found), NO_EVIDENCE)
        for found in ((2, 1, 1), (8, 1, 1), (2, 3, 3), (2, 1, 3))
    ]
    assert divided < one < unanimous < 1
    assert one < long < 1


def test_an_agreeing_second_text_adds_confidence_and_a_contradicting_one_takes_it_away() -> None:
    weights = initial_weights()
    alone = confidence_of(weights, SHORT, NO_EVIDENCE)
    assert confidence_of(weights, SHORT, LONG) > alone
    assert confidence_of(weights, SHORT, evidence_kind(7, 0, 2)) < alone


def test_confidence_converges_to_the_share_of_right_tokens() -> None:
    calibration = LookupCalibration()
    for number in range(400):
        following = [5 if number % 4 == 0 else 6]
        propose_and_commit(calibration, [5], [SHORT], following)
    confidence = confidence_of(calibration.weights, SHORT, NO_EVIDENCE)
    assert confidence == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("lookup", [NgramDrafter, SuffixDrafter])
def test_a_lookup_loses_confidence_in_evidence_that_is_always_wrong(
    lookup: type[NgramDrafter | SuffixDrafter],
) -> None:
    """A text in which no continuation of two tokens repeats."""
    drafter = lookup()
    before = Stream("b", [1, 2, 3, 1, 2]).draft(drafter, depth=1).confidence[0]
    for number in range(10, 50):
        stream = Stream(str(number), [1, 2, number, 1, 2])
        stream.draft(drafter, depth=1)
        stream.committed.extend([number + 100])
        stream.draft(drafter, depth=0)
    after = Stream("c", [1, 2, 3, 1, 2]).draft(drafter, depth=1).confidence[0]
    assert after < before / 2


def test_a_lookup_learns_which_of_two_contradicting_texts_is_right() -> None:
    """Past outputs continue with 8, the own text with 7, and 8 is always committed."""
    drafter = SuffixDrafter()
    drafter.past.add(SHARED, [1, 2, 8])
    for number in range(20):
        stream = Stream(str(number), [1, 2, 7, 1, 2])
        tree = stream.draft(drafter, depth=1)
        stream.committed.extend([8])
        stream.draft(drafter, depth=0)
        if number == 0:
            assert tree.tokens.tolist() == [7]
    assert tree.tokens.tolist() == [8]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 20), st.integers(0, 20)), max_size=40),
    st.booleans(),
)
def test_confidences_stay_probabilities(found: list[tuple[int, int, int]], right: bool) -> None:
    weights = initial_weights()
    for length, one, other in found:
        kind = evidence_kind(length, min(one, other), max(one, other))
        kinds = np.array([(kind, kind)], np.int16)
        following = np.array([5 if right else 6], np.int32)
        update_weights(weights, FIVE, kinds, following)
        assert 0.0 < confidence_of(weights, kind, kind) < 1.0
        assert np.isfinite(weights[PAST, kind]).all()
