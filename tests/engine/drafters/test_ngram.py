"""The ngram drafter proposes what followed earlier matches, with confidence by their agreement."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.lookup import NgramDrafter
from engine.protocol import Draft, DraftStep, Missing
from tests.engine.drafters.orders import Stream, token_paths


def test_the_tokens_that_followed_the_match_are_proposed() -> None:
    tree = Stream("a", [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]).draft(NgramDrafter(), depth=3)
    assert tree.is_chain
    assert tree.tokens.tolist() == [4, 5, 6]


def test_without_a_match_nothing_is_proposed() -> None:
    drafter = NgramDrafter(min_length=2)
    assert len(Stream("a", [1, 2, 3, 4]).draft(drafter, depth=4)) == 0
    assert len(Stream("b", [1, 2, 3, 1]).draft(drafter, depth=4)) == 0
    assert len(Stream("c", [1]).draft(drafter, depth=4)) == 0


def test_the_longest_match_decides() -> None:
    # 2, 3 was followed by 7 twice, but 1, 2, 3 by 8.
    tokens = [1, 2, 3, 8, 2, 3, 7, 2, 3, 7, 1, 2, 3]
    assert Stream("a", tokens).draft(NgramDrafter(), depth=1).tokens.tolist() == [8]


def test_confidence_grows_with_the_share_of_matches_and_their_length() -> None:
    tokens = [1, 2, 7, 4, 1, 2, 8, 5, 1, 2, 7, 6, 1, 2]
    tree = Stream("a", tokens).draft(NgramDrafter(), depth=1, width=2)
    assert tree.tokens.tolist() == [7, 8]
    assert tree.confidence[0] > tree.confidence[1] > 0
    assert tree.confidence.sum() < 1
    (longer,) = Stream("b", [1, 2, 3, 7, 1, 2, 3]).draft(NgramDrafter(), depth=1).confidence
    (shorter,) = Stream("c", [2, 3, 7, 2, 3]).draft(NgramDrafter(), depth=1).confidence
    assert longer > shorter


def test_of_equal_matches_the_latest_decides() -> None:
    tokens = [1, 2, 7, 1, 2, 8, 1, 2]
    assert Stream("a", tokens).draft(NgramDrafter(), depth=1).tokens.tolist() == [8]


def test_each_level_keeps_the_nodes_of_highest_path_confidence() -> None:
    tokens = [1, 2, 7, 4, 1, 2, 8, 5, 1, 2, 7, 6, 1, 2]
    tree = Stream("a", tokens).draft(NgramDrafter(), depth=2, width=2)
    # 7 followed twice, so both of its continuations have more path confidence than 8's.
    assert token_paths(tree) == [[7], [8], [7, 6], [7, 4]]
    # 7 and 8 followed twice each, but 8 was always followed by 5, so 5 comes before 7's children.
    tokens = [1, 2, 8, 5, 1, 2, 8, 5, 1, 2, 7, 4, 1, 2, 7, 6, 1, 2]
    tree = Stream("b", tokens).draft(NgramDrafter(), depth=2, width=2)
    assert token_paths(tree) == [[7], [8], [8, 5], [7, 6]]


def test_a_text_that_repeats_itself_is_drafted_to_any_depth() -> None:
    assert Stream("a", [1, 2, 1, 2]).draft(NgramDrafter(), depth=7).tokens.tolist() == [
        *[1, 2, 1, 2, 1, 2, 1]
    ]


def test_the_index_follows_deltas_and_rewritten_tokens() -> None:
    drafter = NgramDrafter()
    stream = Stream("a", [1, 2, 3, 4])
    stream.draft(drafter, depth=2)
    stream.committed.extend([1, 2])
    assert stream.draft(drafter, depth=2).tokens.tolist() == [3, 4]
    stream.committed.truncate(0)
    stream.committed.extend([8, 9, 7, 1, 2])
    stream.seen = 0
    assert len(stream.draft(drafter, depth=2)) == 0
    stream.committed.extend([8, 9])
    assert stream.draft(drafter, depth=2).tokens.tolist() == [7, 1]


@settings(deadline=None)  # the first one compiles
@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=8))
def test_drafting_in_deltas_equals_drafting_at_once(deltas: list[list[int]]) -> None:
    drafter = NgramDrafter()
    stream = Stream("a", [0])
    for delta in deltas:
        stream.draft(drafter, depth=0)  # proposes nothing, so no confidence changes
        stream.committed.extend(delta)
    tree = stream.draft(drafter, depth=3, width=2)
    fresh = Stream("b", stream.committed.ids).draft(NgramDrafter(), depth=3, width=2)
    assert token_paths(tree) == token_paths(fresh)
    assert tree.confidence.tolist() == fresh.confidence.tolist()


def test_depth_zero_only_catches_up() -> None:
    drafter = NgramDrafter()
    stream = Stream("a", [1, 2, 3, 1, 2])
    assert len(stream.draft(drafter, depth=0)) == 0
    assert stream.draft(drafter, depth=1).tokens.tolist() == [3]


def test_the_policy_decides_before_each_level_which_requests_go_on() -> None:
    steps: list[DraftStep] = []

    def stop_b_after_one_level(step: DraftStep) -> list[bool]:
        steps.append(step)
        return [request == "a" or step.depth == 0 for request in step.requests]

    text = [1, 2, 3, 4, 5, 6, 1, 2]
    streams = [Stream("a", text), Stream("b", text), Stream("no match", [1, 2, 3])]
    answers = NgramDrafter().draft([s.order(depth=3) for s in streams], stop_b_after_one_level)
    trees = [answer.tree for answer in answers if isinstance(answer, Draft)]
    assert [len(tree) for tree in trees] == [3, 1, 0]
    assert [list(step.requests) for step in steps] == [["a", "b"], ["a", "b"], ["a"]]
    assert [len(frontier) for frontier in steps[0].frontier] == [0, 0]
    assert steps[1].frontier[0].tolist() == trees[0].path_confidence()[:1].tolist()


def test_requests_share_no_text_and_can_be_forgotten() -> None:
    drafter = NgramDrafter()
    Stream("a", [1, 2, 3, 4]).draft(drafter, depth=1)
    b = Stream("b", [1, 2])
    assert len(b.draft(drafter, depth=1)) == 0
    drafter.forget(["b", "unknown"])
    (answer,) = drafter.draft([b.order(depth=1)])
    assert answer == Missing("b", 0, 2, have=0)


def test_invalid_match_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="min_length"):
        NgramDrafter(min_length=3, max_length=2)
