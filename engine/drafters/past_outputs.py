"""Past outputs of all requests in one text that a lookup searches; bounded."""

from bisect import bisect_right
from collections.abc import Sequence

from engine.drafters.text_index import NONE, TOKENS, TextIndex


class PastOutputs:
    """At most `max_tokens` tokens of whole outputs; the least recently used are evicted."""

    def __init__(self, max_tokens: int) -> None:
        self.index = TextIndex()
        self._max_tokens = max_tokens
        self._tokens = 0
        self._starts: list[int] = []
        """Where each output in the index starts, ascending, including evicted ones."""
        self._lengths: dict[int, int] = {}
        """Length by start of the outputs that are not evicted, least recently used first."""

    def add(self, tokens: Sequence[int]) -> None:
        if not 0 < len(tokens) <= self._max_tokens:
            return
        while self._tokens + len(tokens) > self._max_tokens:
            oldest = next(iter(self._lengths))
            length = self._lengths.pop(oldest)
            self.index.erase(oldest, oldest + length)
            self._tokens -= length
        if self.index.end > 3 * self._max_tokens:
            self._compact()
        self._register(len(tokens))
        self.index.extend([*tokens, NONE])

    def touch(self, position: int) -> None:
        """Marks the output around this position as used by a draft."""
        start = self._starts[bisect_right(self._starts, position) - 1]
        self._lengths[start] = self._lengths.pop(start)

    def _compact(self) -> None:
        """Rebuilds the index from the outputs that are not evicted.

        They fill at most two thirds of it, with the NONE behind each output, so this happens at
        most once per `max_tokens` added tokens.
        """
        text, parts = self.index.store[TOKENS], list(self._lengths.items())
        kept = [text[start : start + length + 1].copy() for start, length in parts]
        self.index.clear()
        self._starts.clear()
        self._lengths.clear()
        self._tokens = 0
        for tokens in kept:
            self._register(len(tokens) - 1)
            self.index.extend(tokens)

    def _register(self, length: int) -> None:
        """Books an output that the caller appends to the index next."""
        self._starts.append(self.index.end)
        self._lengths[self.index.end] = length
        self._tokens += length
