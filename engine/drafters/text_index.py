"""Finds where the last tokens of a request occurred before in a text (hash chains, as in LZ77).

A position in a text is the index of the token that comes next. One chain links each position to the
last one after the same token, another to the last one after the same two tokens. So a token costs
20 bytes and constant time, and parts of a text can be erased without repairing a tree. A search
finds what a suffix tree would find among the STEPS most recent positions of a chain.

Compiled calls here hold Python's global lock: lookups draft in the event loop, and a call of
microseconds that released the lock would get it back only after a model's thread had run.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Store = NDArray[np.int32]
"""The five rows below; their common length is a power of two."""

TOKENS, BEHIND_ONE, BEHIND_TWO, LAST_ONE, LAST_TWO = range(5)
"""Rows of a store: the text; for each position the one before it in either chain; for each hash the
last position of either chain. 0 ends a chain, as no token precedes position 0."""

NONE = -1
"""Not a token: it ends each output in a text of many, and overwrites what is erased."""
STEPS = 1024
"""The most recent positions of a chain that a search looks at."""
MIN_CAPACITY = 256


class TextIndex:
    """One growing text."""

    def __init__(self) -> None:
        self.store: Store = np.zeros((5, MIN_CAPACITY), np.int32)
        self.end = 0

    def follow(self, text: Sequence[int], unchanged: int) -> None:
        """Becomes `text`, of which the first `unchanged` tokens are as they were."""
        if unchanged < self.end:
            # Rare: only a request that restarts rewrites its committed tokens.
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
        """Searches no longer find these tokens; their memory stays in use until `clear`."""
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
    store: Store, end: int, recent: Tokens, max_length: int, positions: Tokens
) -> tuple[int, int]:
    """Finds the longest suffix of `recent`, up to `max_length` tokens, that a token followed.

    Fills `positions`, most recent first. Returns the suffix's length and the number of positions.
    """
    longest = found = 0
    if len(recent) > 1 and max_length > 1:
        last = store[LAST_TWO, _hash_two(store, recent[-2], recent[-1])]
        longest, found = _search_chain(store, BEHIND_TWO, last, end, recent, max_length, positions)
    if longest < 2 and len(recent) > 0:
        last = store[LAST_ONE, _hash_one(store, recent[-1])]
        longest, found = _search_chain(store, BEHIND_ONE, last, end, recent, max_length, positions)
    return longest, found


@njit(cache=True)
def _search_chain(
    store: Store,
    chain: int,
    position: int,
    end: int,
    recent: Tokens,
    max_length: int,
    positions: Tokens,
) -> tuple[int, int]:
    """`longest_match` among the positions of one chain, from `position` back."""
    text, before = store[TOKENS], store[chain]
    max_length = min(max_length, len(recent))
    longest = found = 0
    for _ in range(STEPS):
        if position == 0:
            break
        if position < end and text[position] != NONE:
            length = 0
            while (
                length < min(max_length, position)
                and text[position - 1 - length] == recent[-1 - length]
            ):
                length += 1
            if length > longest:
                longest, found = length, 0
            if length == longest and length > 0 and found < len(positions):
                positions[found] = position
                found += 1
                if length == max_length and found == len(positions):
                    break
        position = before[position]
    return longest, found


@njit(cache=True)
def _hash_one(store: Store, token: int) -> int:
    return token & (store.shape[1] - 1)


@njit(cache=True)
def _hash_two(store: Store, first: int, second: int) -> int:
    return (first * 40503 + second) & (store.shape[1] - 1)
