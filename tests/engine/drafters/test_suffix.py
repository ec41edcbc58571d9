"""The suffix drafter: its own request, past outputs of others, and bounded memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.lookup import SuffixDrafter
from engine.protocol import Missing
from tests.engine.drafters.orders import Stream, token_paths

OUTPUT = [11, 12, 13, 14, 15, 16]


def finish(drafter: SuffixDrafter, name: str, prompt: list[int], output: list[int]) -> None:
    stream = Stream(name, prompt)
    stream.draft(drafter, depth=0)
    stream.committed.extend(output)
    stream.draft(drafter, depth=0)
    drafter.forget([name])


def test_the_requests_own_text_is_searched() -> None:
    tree = Stream("a", [1, 2, 3, 4, 5, 9, 1, 2, 3]).draft(SuffixDrafter(), depth=2)
    assert tree.tokens.tolist() == [4, 5]


def test_the_output_of_a_finished_request_becomes_a_past_output() -> None:
    drafter = SuffixDrafter()
    other = Stream("b", [1, 11, 12])
    assert len(other.draft(drafter, depth=3)) == 0
    finish(drafter, "a", [1, 2], OUTPUT)
    assert other.draft(drafter, depth=3).tokens.tolist() == [13, 14, 15]


def test_prompts_of_other_requests_are_not_searched() -> None:
    drafter = SuffixDrafter()
    finish(drafter, "a", OUTPUT, [1, 2])
    assert len(Stream("b", [11, 12]).draft(drafter, depth=3)) == 0


def test_with_past_tokens_0_only_the_own_text_is_searched() -> None:
    drafter = SuffixDrafter(past_tokens=0)
    drafter.learn(OUTPUT)
    assert len(Stream("a", [11, 12]).draft(drafter, depth=1)) == 0
    assert len(Stream("b", [11, 12, 13, 11, 12]).draft(drafter, depth=1)) == 1


def test_siblings_are_ordered_by_count_and_sum_to_at_most_1() -> None:
    drafter = SuffixDrafter()
    for last in (3, 3, 4):
        drafter.learn([1, 2, last])
    tree = Stream("a", [1, 2]).draft(drafter, depth=1, width=3)
    assert tree.tokens.tolist() == [3, 4]
    assert tree.confidence[0] > tree.confidence[1] > 0
    assert tree.confidence.sum() <= 1


def test_the_longer_match_decides_and_at_equal_length_the_own_text() -> None:
    drafter = SuffixDrafter()
    drafter.learn([1, 2, 3, 8])
    longer_elsewhere = Stream("a", [2, 3, 7, 1, 2, 3])
    assert longer_elsewhere.draft(drafter, depth=1).tokens.tolist() == [8]
    as_long_here = Stream("b", [1, 2, 3, 7, 1, 2, 3])
    assert as_long_here.draft(drafter, depth=1).tokens.tolist() == [7]


def test_a_text_that_repeats_itself_is_drafted_to_any_depth() -> None:
    tree = Stream("a", [1, 2, 1, 2, 1, 2]).draft(SuffixDrafter(), depth=30)
    assert tree.tokens.tolist() == [1, 2] * 15


def test_past_outputs_are_bounded_and_the_least_recently_used_are_evicted() -> None:
    drafter = SuffixDrafter(past_tokens=30)
    for first in (100, 200, 300):
        drafter.learn(range(first, first + 10))

    def is_found(first: int) -> bool:
        stream = Stream(f"request {first}", [first, first + 1])
        return len(stream.draft(drafter, depth=1)) == 1

    assert is_found(100)  # which counts as a use
    drafter.learn(range(400, 410))
    assert [first for first in (100, 200, 300, 400) if is_found(first)] == [100, 300, 400]


def test_an_output_larger_than_the_limit_is_not_kept() -> None:
    drafter = SuffixDrafter(past_tokens=60)
    drafter.learn(range(100))
    assert len(Stream("a", [1, 2]).draft(drafter, depth=1)) == 0


def test_outputs_that_stay_are_still_found_after_the_index_was_compacted() -> None:
    drafter = SuffixDrafter(past_tokens=40)
    drafter.learn(OUTPUT)
    for number in range(100):
        drafter.learn(range(100 + 20 * number, 120 + 20 * number))
        tree = Stream(f"request {number}", OUTPUT[:2]).draft(drafter, depth=9)
        assert tree.tokens.tolist() == OUTPUT[2:]


@settings(deadline=None)  # the first one compiles
@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=8))
def test_drafting_in_deltas_equals_drafting_at_once(deltas: list[list[int]]) -> None:
    drafter = SuffixDrafter()
    stream = Stream("a", [0])
    for delta in deltas:
        stream.draft(drafter, depth=0)  # proposes nothing, so no confidence changes
        stream.committed.extend(delta)
    tree = stream.draft(drafter, depth=3, width=2)
    fresh = Stream("b", stream.committed.ids).draft(SuffixDrafter(), depth=3, width=2)
    assert token_paths(tree) == token_paths(fresh)
    assert tree.confidence.tolist() == fresh.confidence.tolist()


def test_rewritten_tokens_are_followed() -> None:
    drafter = SuffixDrafter()
    stream = Stream("a", [1, 2, 3, 4, 1, 2])
    stream.draft(drafter, depth=1)
    stream.committed.truncate(2)
    stream.committed.extend([9, 1, 2])
    stream.seen = 2
    assert stream.draft(drafter, depth=2).tokens.tolist() == [9, 1]


def test_a_forgotten_request_is_missing_from_its_first_token() -> None:
    drafter = SuffixDrafter()
    stream = Stream("a", [1, 2])
    stream.draft(drafter, depth=1)
    drafter.forget(["a", "a", "unknown"])
    (answer,) = drafter.draft([stream.order(depth=1)])
    assert answer == Missing("a", 0, 2, have=0)


def test_invalid_match_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="min_match"):
        SuffixDrafter(min_match=0)
