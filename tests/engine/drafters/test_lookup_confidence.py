"""What lookups find is believed as far as such evidence has turned out right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drafters.lookup_confidence import (
    NO_EVIDENCE,
    OWN,
    PAST,
    Experience,
    believe,
    first_weights,
    judge,
    kind_of,
)
from engine.drafters.ngram import NgramDrafter
from engine.drafters.suffix import SuffixDrafter
from policies.tree import DraftTree
from tests.engine.drafters.orders import Stream

ONE_PLACE = kind_of(3, 1, 1)
OTHER = kind_of(7, 2, 2)
WEIGHT, COUNTED = 0, 1


def belief(experience: Experience, own: int, past: int = NO_EVIDENCE) -> float:
    return believe(experience.weights, own, past)


def say(experience: Experience, tree: DraftTree, kinds: list[int], said: list[int]) -> None:
    """Proposed behind two tokens, all on evidence of the own text."""
    told = np.array([(kind, NO_EVIDENCE) for kind in kinds], np.int16)
    experience.note("a", 2, tree, told)
    experience.learn("a", [1, 2, *said], unchanged=2)


def test_at_first_longer_matches_and_those_that_agree_are_believed_more() -> None:
    weights = first_weights()
    one, long, several, torn = [
        believe(weights, kind_of(*found), NO_EVIDENCE)
        for found in ((2, 1, 1), (8, 1, 1), (2, 3, 3), (2, 1, 3))
    ]
    assert torn < one < several < 1
    assert one < long < 1


def test_texts_that_agree_are_believed_more_than_each_and_one_that_contradicts_less() -> None:
    weights = first_weights()
    alone = believe(weights, ONE_PLACE, NO_EVIDENCE)
    assert believe(weights, ONE_PLACE, OTHER) > alone
    assert believe(weights, ONE_PLACE, kind_of(7, 0, 2)) < alone


def test_belief_comes_to_how_often_it_was_right() -> None:
    experience = Experience()
    for number in range(400):
        say(experience, DraftTree.chain([5]), [ONE_PLACE], [5 if number % 4 == 0 else 6])
    assert belief(experience, ONE_PLACE) == pytest.approx(0.25, abs=0.05)


def test_what_stands_behind_a_wrong_token_is_not_judged() -> None:
    experience = Experience()
    say(experience, DraftTree.chain([5, 6]), [ONE_PLACE, OTHER], [9, 6])
    assert experience.weights[OWN, ONE_PLACE, COUNTED] == 1
    assert experience.weights[OWN, OTHER, COUNTED] == 0


def test_what_nobody_has_answered_yet_is_not_judged() -> None:
    experience = Experience()
    say(experience, DraftTree.chain([5, 6]), [ONE_PLACE, OTHER], [5])
    assert experience.weights[OWN, ONE_PLACE, COUNTED] == 1
    assert experience.weights[OWN, OTHER, COUNTED] == 0


def test_siblings_are_judged_each() -> None:
    experience = Experience()
    siblings = DraftTree(
        np.array([5, 6], np.int32),
        np.array([-1, -1], np.int32),
        np.array([1, 1], np.int32),
        np.ones(2, np.float32),
    )
    wrong, right = experience.weights[OWN, (ONE_PLACE, OTHER), WEIGHT]
    say(experience, siblings, [ONE_PLACE, OTHER], [6])
    assert experience.weights[OWN, ONE_PLACE, WEIGHT] < wrong
    assert experience.weights[OWN, OTHER, WEIGHT] > right


def test_a_history_that_was_rewritten_judges_nothing() -> None:
    experience = Experience()
    experience.note("a", 2, DraftTree.chain([5]), np.array([(ONE_PLACE, NO_EVIDENCE)], np.int16))
    experience.learn("a", [1, 9, 5], unchanged=1)
    assert experience.weights[:, :, COUNTED].sum() == 0


def test_what_a_request_was_told_is_judged_once_and_forgotten_with_it() -> None:
    experience = Experience()
    tree, kinds = DraftTree.chain([5]), np.array([(ONE_PLACE, NO_EVIDENCE)], np.int16)
    experience.note("a", 2, tree, kinds)
    for _ in range(2):
        experience.learn("a", [1, 2, 5], unchanged=2)
    experience.note("b", 2, tree, kinds)
    experience.forget("b")
    experience.learn("b", [1, 2, 5], unchanged=2)
    assert experience.weights[OWN, ONE_PLACE, COUNTED] == 1


@pytest.mark.parametrize("lookup", [NgramDrafter, SuffixDrafter])
def test_a_lookup_learns_that_single_matches_are_wrong(
    lookup: type[NgramDrafter | SuffixDrafter],
) -> None:
    """A text in which nothing that stood behind two tokens comes back."""
    drafter = lookup()
    before = Stream("b", [1, 2, 3, 1, 2]).draft(drafter, depth=1).confidence[0]
    for number in range(10, 50):
        stream = Stream(str(number), [1, 2, number, 1, 2])
        stream.draft(drafter, depth=1)
        stream.committed.extend([number + 100])
        stream.draft(drafter, depth=0)
    after = Stream("c", [1, 2, 3, 1, 2]).draft(drafter, depth=1).confidence[0]
    assert after < before / 2


def test_a_lookup_learns_whom_to_believe_where_two_texts_differ() -> None:
    """Past outputs go on with 8, the own text with 7, and it is always 8."""
    drafter = SuffixDrafter()
    drafter.learn([1, 2, 8])
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
def test_beliefs_stay_probabilities(found: list[tuple[int, int, int]], right: bool) -> None:
    weights = first_weights()
    tree = DraftTree.chain([5])
    for length, one, other in found:
        kind = kind_of(length, min(one, other), max(one, other))
        kinds = np.array([(kind, kind)], np.int16)
        said = np.array([5 if right else 6], np.int32)
        judge(weights, tree.tokens, tree.parents, kinds, said)
        assert 0.0 < believe(weights, kind, kind) < 1.0
        assert np.isfinite(weights[PAST, kind]).all()
