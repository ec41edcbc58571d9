"""The text index against a brute-force search, while texts grow, are erased and rewritten."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.text_index import MIN_CAPACITY, NONE, STEPS, TextIndex, longest_match

MAX_LENGTH = 4
TOKENS = st.lists(st.integers(0, 2), max_size=12)
Change = list[int] | tuple[int, int]
"""Tokens to append, or the range to erase."""
CHANGES = st.lists(st.one_of(TOKENS, st.tuples(st.integers(0, 30), st.integers(0, 30))), max_size=8)


def indexed(changes: Sequence[Change]) -> tuple[TextIndex, list[int]]:
    index, text = TextIndex(), list[int]()
    for change in changes:
        if isinstance(change, list):
            index.extend(change)
            text += change
        else:
            start, end = sorted(min(at, len(text)) for at in change)
            index.erase(start, end)
            text[start:end] = [NONE] * (end - start)
    return index, text


def match(index: TextIndex, recent: Sequence[int], positions: int = 64) -> tuple[int, list[int]]:
    found = np.empty(positions, np.int32)
    length, count = longest_match(
        index.store, index.end, np.array(recent, np.int32), MAX_LENGTH, found
    )
    return length, found[:count].tolist()


def brute_force(text: Sequence[int], recent: Sequence[int]) -> tuple[int, list[int]]:
    for length in range(min(MAX_LENGTH, len(recent)), 0, -1):
        positions = [
            end
            for end in range(len(text) - 1, length - 1, -1)
            if list(text[end - length : end]) == list(recent[-length:]) and text[end] != NONE
        ]
        if positions:
            return length, positions
    return 0, []


@settings(max_examples=500, deadline=None)  # the first one compiles
@given(CHANGES, st.lists(st.integers(0, 3), max_size=6))
def test_the_longest_match_is_found_at_all_its_positions_most_recent_first(
    changes: list[Change], recent: list[int]
) -> None:
    index, text = indexed(changes)
    assert match(index, recent) == brute_force(text, recent)


@settings(deadline=None)
@given(TOKENS, TOKENS, TOKENS)
def test_follow_replaces_rewritten_tokens(kept: list[int], old: list[int], new: list[int]) -> None:
    index = TextIndex()
    index.follow(kept + old, unchanged=0)
    index.follow(kept + new, unchanged=len(kept))
    fresh = TextIndex()
    fresh.extend(kept + new)
    assert match(index, new) == match(fresh, new)


def test_tokens_with_equal_hashes_are_distinguished() -> None:
    index = TextIndex()
    index.extend([1, 2, 1 + MIN_CAPACITY, 3, 1, 4])
    assert match(index, [1]) == (1, [5, 1])
    assert match(index, [1 + MIN_CAPACITY]) == (1, [3])


def test_an_index_grows_beyond_its_initial_capacity() -> None:
    index = TextIndex()
    text = [n * n % 97 for n in range(4 * MIN_CAPACITY)]
    for start in range(0, len(text), 7):
        index.extend(text[start : start + 7])
    assert match(index, text[-5:]) == brute_force(text, text[-5:])


def test_only_the_most_recent_positions_are_searched() -> None:
    """So a frequent token costs no more in a longer text."""
    index = TextIndex()
    index.extend([5, 1, 2, 9, *[1, 2, 7] * STEPS])
    assert match(index, [5, 1, 2], positions=3)[0] == 2
