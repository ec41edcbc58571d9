"""The index of a text against searching by hand, while the text grows, is erased and rewritten."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.text_index import NONE, SMALLEST, STEPS, TextIndex, longest_match

MOST = 4
TOKENS = st.lists(st.integers(0, 2), max_size=12)
Change = list[int] | tuple[int, int]
"""What the text grows by, or from where to where it is erased."""
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


def match(index: TextIndex, recent: Sequence[int], places: int = 64) -> tuple[int, list[int]]:
    found = np.empty(places, np.int32)
    length, count = longest_match(index.store, index.end, np.array(recent, np.int32), MOST, found)
    return length, found[:count].tolist()


def by_hand(text: Sequence[int], recent: Sequence[int]) -> tuple[int, list[int]]:
    for length in range(min(MOST, len(recent)), 0, -1):
        places = [
            end
            for end in range(len(text) - 1, length - 1, -1)
            if list(text[end - length : end]) == list(recent[-length:]) and text[end] != NONE
        ]
        if places:
            return length, places
    return 0, []


@settings(max_examples=500, deadline=None)  # the first one compiles
@given(CHANGES, st.lists(st.integers(0, 3), max_size=6))
def test_the_longest_match_is_found_at_all_its_places_the_most_recent_first(
    changes: list[Change], recent: list[int]
) -> None:
    index, text = indexed(changes)
    assert match(index, recent) == by_hand(text, recent)


@settings(deadline=None)
@given(TOKENS, TOKENS, TOKENS)
def test_a_text_is_followed_and_rewritten(kept: list[int], old: list[int], new: list[int]) -> None:
    index = TextIndex()
    index.follow(kept + old, unchanged=0)
    index.follow(kept + new, unchanged=len(kept))
    fresh = TextIndex()
    fresh.extend(kept + new)
    assert match(index, new) == match(fresh, new)


def test_tokens_whose_hashes_are_the_same_are_told_apart() -> None:
    index = TextIndex()
    index.extend([1, 2, 1 + SMALLEST, 3, 1, 4])
    assert match(index, [1]) == (1, [5, 1])
    assert match(index, [1 + SMALLEST]) == (1, [3])


def test_it_grows_with_its_text() -> None:
    index = TextIndex()
    text = [n * n % 97 for n in range(4 * SMALLEST)]
    for start in range(0, len(text), 7):
        index.extend(text[start : start + 7])
    assert match(index, text[-5:]) == by_hand(text, text[-5:])


def test_only_the_most_recent_places_are_looked_at() -> None:
    """A token that stands everywhere must not cost more the longer the text is."""
    index = TextIndex()
    index.extend([5, 1, 2, 9, *[1, 2, 7] * STEPS])
    assert match(index, [5, 1, 2], places=3)[0] == 2
