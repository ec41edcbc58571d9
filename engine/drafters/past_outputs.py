"""Past outputs of all requests, as one text that is looked up in; bounded."""

from bisect import bisect_right
from collections.abc import Sequence

from engine.drafters.text_index import NONE, TOKENS, TextIndex


class PastOutputs:
    """At most `max_tokens` of whole outputs; when they are full, the least recently used leave."""

    def __init__(self, max_tokens: int) -> None:
        self.index = TextIndex()
        self._max_tokens = max_tokens
        self._tokens = 0
        self._starts: list[int] = []
        """Of every output that the index holds, in its order; those that left included."""
        self._lengths: dict[int, int] = {}
        """Of those that have not, by start; least recently used first."""

    def learn(self, tokens: Sequence[int]) -> None:
        if not 0 < len(tokens) <= self._max_tokens:
            return
        while self._tokens + len(tokens) > self._max_tokens:
            oldest = next(iter(self._lengths))
            length = self._lengths.pop(oldest)
            self.index.erase(oldest, oldest + length)
            self._tokens -= length
        if self.index.end > 3 * self._max_tokens:
            self._make_room()
        self._note(len(tokens))
        self.index.extend([*tokens, NONE])

    def touch(self, place: int) -> None:
        """Notes that a draft came from there."""
        start = self._starts[bisect_right(self._starts, place) - 1]
        self._lengths[start] = self._lengths.pop(start)

    def _make_room(self) -> None:
        """Writes anew what has not left. That is two thirds of the index at most, the NONE behind
        each output included, so it is done once per `max_tokens` learnt or more seldom."""
        text, parts = self.index.store[TOKENS], list(self._lengths.items())
        kept = [text[start : start + length + 1].copy() for start, length in parts]
        self.index.clear()
        self._starts.clear()
        self._lengths.clear()
        self._tokens = 0
        for tokens in kept:
            self._note(len(tokens) - 1)
            self.index.extend(tokens)

    def _note(self, length: int) -> None:
        """Of an output that is about to enter."""
        self._starts.append(self.index.end)
        self._lengths[self.index.end] = length
        self._tokens += length
