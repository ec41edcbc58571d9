"""The lookups: what followed earlier matches, in a request's own text (ngram), or in past outputs
of others as well (suffix), with confidence by agreement; in bounded memory."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.lookup import LookupDrafter, NgramDrafter, SuffixDrafter
from engine.protocol import Draft, DraftStep, Missing
from engine.scopes import SHARED
from tests.engine.drafters.orders import Stream, token_paths
from tests.policies.tree_lists import path_confidence

both = pytest.mark.parametrize("lookup", [NgramDrafter, SuffixDrafter])
Lookup = Callable[[], LookupDrafter]


@both
def test_a_text_that_repeats_itself_is_drafted_to_any_depth(lookup: Lookup) -> None:
    tree = Stream("a", [1, 2, 1, 2]).draft(lookup(), depth=30)
    assert tree.tokens.tolist() == [1, 2] * 15


@both
def test_the_index_follows_deltas_and_rewritten_tokens(lookup: Lookup) -> None:
    drafter = lookup()
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


@both
@settings(deadline=None)  # the first one compiles
@given(deltas=st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=8))
def test_drafting_in_deltas_equals_drafting_at_once(
    lookup: Lookup, deltas: list[list[int]]
) -> None:
    drafter = lookup()
    stream = Stream("a", [0])
    for delta in deltas:
        stream.draft(drafter, depth=0)  # proposes nothing, so no confidence changes
        stream.committed.extend(delta)
    tree = stream.draft(drafter, depth=3)
    fresh = Stream("b", stream.committed.ids).draft(lookup(), depth=3)
    assert token_paths(tree) == token_paths(fresh)
    assert tree.confidence.tolist() == fresh.confidence.tolist()


@both
def test_requests_share_no_text_and_can_be_forgotten(lookup: Lookup) -> None:
    drafter = lookup()
    Stream("a", [1, 2, 3, 4]).draft(drafter, depth=1)
    b = Stream("b", [1, 2])
    assert len(b.draft(drafter, depth=1)) == 0
    drafter.forget(["b", "b", "unknown"])
    (answer,) = drafter.draft([b.order(depth=1)])
    assert answer == Missing("b", 0, 2, have=0)


def test_the_longest_match_decides() -> None:
    # 2, 3 was followed by 7 twice, but 1, 2, 3 by 8.
    tokens = [1, 2, 3, 8, 2, 3, 7, 2, 3, 7, 1, 2, 3]
    assert Stream("a", tokens).draft(NgramDrafter(), depth=1).tokens.tolist() == [8]


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
    assert steps[1].frontier[0].tolist() == path_confidence(trees[0])[:1].tolist()


OUTPUT = [11, 12, 13, 14, 15, 16]


def learn(drafter: SuffixDrafter, output: Sequence[int]) -> None:
    """As if a request with this output had ended."""
    drafter.past.add(SHARED, output)


def finish(drafter: SuffixDrafter, name: str, prompt: list[int], output: list[int]) -> None:
    stream = Stream(name, prompt)
    stream.draft(drafter, depth=0)
    stream.committed.extend(output)
    stream.draft(drafter, depth=0)
    drafter.forget([name])


def test_prompts_of_other_requests_are_not_searched() -> None:
    drafter = SuffixDrafter()
    finish(drafter, "a", OUTPUT, [1, 2])
    assert len(Stream("b", [11, 12]).draft(drafter, depth=3)) == 0


def test_with_past_tokens_0_only_the_own_text_is_searched() -> None:
    drafter = SuffixDrafter(past_tokens=0)
    learn(drafter, OUTPUT)
    assert len(Stream("a", [11, 12]).draft(drafter, depth=1)) == 0
    assert len(Stream("b", [11, 12, 13, 11, 12]).draft(drafter, depth=1)) == 1


def test_the_longer_match_decides_and_at_equal_length_the_own_text() -> None:
    drafter = SuffixDrafter()
    learn(drafter, [1, 2, 3, 8])
    longer_elsewhere = Stream("a", [2, 3, 7, 1, 2, 3])
    assert longer_elsewhere.draft(drafter, depth=1).tokens.tolist() == [8]
    as_long_here = Stream("b", [1, 2, 3, 7, 1, 2, 3])
    assert as_long_here.draft(drafter, depth=1).tokens.tolist() == [7]


def test_past_outputs_are_bounded_and_the_least_recently_used_are_evicted() -> None:
    drafter = SuffixDrafter(past_tokens=30)
    for first in (100, 200, 300):
        learn(drafter, range(first, first + 10))

    def is_found(first: int) -> bool:
        stream = Stream(f"request {first}", [first, first + 1])
        return len(stream.draft(drafter, depth=1)) == 1

    assert is_found(100)  # which counts as a use
    learn(drafter, range(400, 410))
    assert [first for first in (100, 200, 300, 400) if is_found(first)] == [100, 300, 400]


def test_outputs_that_stay_are_still_found_after_the_index_was_compacted() -> None:
    drafter = SuffixDrafter(past_tokens=40)
    learn(drafter, OUTPUT)
    for number in range(100):
        learn(drafter, range(100 + 20 * number, 120 + 20 * number))
        tree = Stream(f"request {number}", OUTPUT[:2]).draft(drafter, depth=9)
        assert tree.tokens.tolist() == OUTPUT[2:]
