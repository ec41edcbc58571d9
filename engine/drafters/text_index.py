"""Where in a text its tokens stood before: chains from each place to the last that reads alike.

A place is named by the index of what comes next. One chain links the places behind the same token,
another those behind the same two (as LZ77's hash chains do), so a token costs 20 bytes and a
constant time, and a text can lose its oldest parts without a tree to mend. What is searched for
is found as a suffix tree finds it, of the most recent STEPS places of a chain.

Compiled calls here keep Python's lock: lookups draft in the event loop, and what lets go of the
lock for microseconds gets it back only after a model's thread has had its turn.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Store = NDArray[np.int32]
"""Rows of equal length, a power of two: see below."""

TOKENS, BEHIND_ONE, BEHIND_TWO, LAST_ONE, LAST_TWO = range(5)
"""The text; of each place the one before it in its chain; of each hash the last place. 0: none,
for nothing stands behind place 0."""

NONE = -1
"""A token that is none: texts end with it, and what is erased is overwritten by it."""
STEPS = 1024
"""Places of a chain that are looked at, the most recent ones."""
SMALLEST = 256


class TextIndex:
    """One growing text."""

    def __init__(self) -> None:
        self.store: Store = np.zeros((5, SMALLEST), np.int32)
        self.end = 0

    def follow(self, text: Sequence[int], unchanged: int) -> None:
        """Becomes `text`, of which the first `unchanged` tokens are as they were."""
        if unchanged < self.end:
            # Only a request that starts anew rewrites its committed tokens.
            self.clear()
        self.extend(text[self.end :])

    def clear(self) -> None:
        self.store[:] = 0
        self.end = 0

    def extend(self, tokens: Sequence[int] | Tokens) -> None:
        added = np.asarray(tokens, np.int32)
        needed = self.end + len(added) + 1
        if needed > self.store.shape[1]:
            text = self.store[TOKENS, : self.end]
            self.store = np.zeros((5, 1 << (needed - 1).bit_length()), np.int32)
            append(self.store, 0, text)
        append(self.store, self.end, added)
        self.end += len(added)

    def erase(self, start: int, end: int) -> None:
        """What stood there is found no more; its room is not free."""
        self.store[TOKENS, start:end] = NONE


@njit(cache=True)
def append(store: Store, end: int, added: Tokens) -> None:
    text = store[TOKENS]
    for token in added:
        text[end] = token
        end += 1
        one = _hash_one(store, token)
        store[BEHIND_ONE, end] = store[LAST_ONE, one]
        store[LAST_ONE, one] = end
        if end > 1:
            two = _hash_two(store, text[end - 2], token)
            store[BEHIND_TWO, end] = store[LAST_TWO, two]
            store[LAST_TWO, two] = end


@njit(cache=True)
def longest_match(
    store: Store, end: int, recent: Tokens, most: int, places: Tokens
) -> tuple[int, int]:
    """Fills `places` with where the longest suffix of `recent`, of at most `most` tokens, was
    followed by something, most recent first. Returns its length and how many they are."""
    longest = found = 0
    if len(recent) > 1 and most > 1:
        two = _hash_two(store, recent[-2], recent[-1])
        longest, found = _follow(store, BEHIND_TWO, store[LAST_TWO, two], end, recent, most, places)
    if longest < 2 and len(recent) > 0:
        one = _hash_one(store, recent[-1])
        longest, found = _follow(store, BEHIND_ONE, store[LAST_ONE, one], end, recent, most, places)
    return longest, found


@njit(cache=True)
def _follow(
    store: Store, chain: int, place: int, end: int, recent: Tokens, most: int, places: Tokens
) -> tuple[int, int]:
    text, before = store[TOKENS], store[chain]
    most = min(most, len(recent))
    longest = found = 0
    for _ in range(STEPS):
        if place == 0:
            break
        if place < end and text[place] != NONE:
            length = 0
            while length < min(most, place) and text[place - 1 - length] == recent[-1 - length]:
                length += 1
            if length > longest:
                longest, found = length, 0
            if length == longest and length > 0 and found < len(places):
                places[found] = place
                found += 1
                if length == most and found == len(places):
                    break
        place = before[place]
    return longest, found


@njit(cache=True)
def _hash_one(store: Store, token: int) -> int:
    return token & (store.shape[1] - 1)


@njit(cache=True)
def _hash_two(store: Store, first: int, second: int) -> int:
    return (first * 40503 + second) & (store.shape[1] - 1)
