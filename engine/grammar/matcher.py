"""The tokens that a request's grammar allows after its output, and after drafts of it.

They follow from the grammar and the output tokens alone. The matcher's state is soft: it is rebuilt
from the committed tokens whenever they are not those that it has seen.
"""

from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from time import thread_time

import numpy as np
from numpy.typing import NDArray

from engine.errors import SpindleError
from engine.grammar.compiler import Compiled
from engine.sampling.params import SamplingParams

Words = NDArray[np.int32]
"""One bit for each token of the vocabulary, the lowest first; set: it is allowed."""


class GrammarViolated(SpindleError):
    """Committed tokens are not of the grammar: they were not chosen under it."""


class GrammarStuck(SpindleError):
    """An output cannot be followed: its grammar allows nothing after it, or has so many ways to
    read it that this takes too long."""


MOST_S = 1.0
MOST_PER_TOKEN_S = 0.01
"""Processor time that following one output may take: `MOST_S`, and this for each of its tokens.
It takes tens of microseconds a token, unless a grammar is ambiguous: then it grows with the
square of the output, while all other requests of the batch wait."""


class OutputMatcher:
    def __init__(
        self,
        compiled: Compiled,
        params: SamplingParams,
        vocab_size: int,
        most_s: float = MOST_S,
    ) -> None:
        """`params`: as admitted, with the model's own stop tokens. `most_s`: the part of its
        processor time that does not grow with the output."""
        self._most_s = most_s
        self._end = compiled.end
        self._matcher = compiled.matcher.deep_copy()
        self._words = -(-vocab_size // 32)
        self._stops = frozenset(params.stop_token_ids)
        self._stop_bits = _bits(params.stop_token_ids, self._words)
        self._min_tokens = params.min_tokens
        self._never_stops = params.ignore_eos
        self._tokens: list[int] = []
        """The output tokens that the matcher has seen, then a draft's."""
        self._output = 0
        """The number of output tokens among them."""
        self._ended = False
        """The last token is a stop token that ends the output."""
        self._spent_s = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether half of the processor time is spent: drafts, which need more of it, must not fail
        a request."""
        return 2 * self._spent_s > self._limit_s

    @property
    def _limit_s(self) -> float:
        return self._most_s + MOST_PER_TOKEN_S * len(self._tokens)

    def follow(self, output: Sequence[int]) -> None:
        """Sets the output tokens after which masks are made. Raises GrammarViolated, or
        GrammarStuck, as do the other methods."""
        self._advance(output)
        if len(self._tokens) < len(output):
            raise GrammarViolated(f"output token {len(self._tokens)} is not allowed")
        self._output = len(output)

    def allowed(self, path: Sequence[int] = ()) -> Words | None:
        """The tokens allowed after the output and the draft tokens `path`. None: the path itself
        is not allowed, or ends the output, so that nothing after it is ever read."""
        if not self.allows(path) or self._ended:
            return None
        begun = thread_time()
        words = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[: self._words].copy()
        self._spend(thread_time() - begun)
        place, bit = divmod(self._end, 32)
        words[place:] &= (1 << bit) - 1  # no token comes after it in the last word
        return self._with_stops(words)

    def allows(self, path: Sequence[int]) -> bool:
        """Whether the output may go on with this path; faster than its mask."""
        return self.allowed_length(path) == len(path)

    def allowed_length(self, path: Sequence[int]) -> int:
        """How many of the path's tokens the output may go on with."""
        self._advance(path, self._output)
        return len(self._tokens) - self._output

    def forced(self, path: Sequence[int], most: int) -> list[int]:
        """The tokens after the output and `path` of which each is the only one allowed there, up
        to one that ends the output: at most `most`."""
        forced: list[int] = []
        while len(forced) < most and (words := self.allowed([*path, *forced])) is not None:
            token = _only_token(words)
            if token is None:
                break
            forced.append(token)
        return forced

    def _advance(self, tokens: Sequence[int], first: int = 0) -> None:
        """Makes the tokens seen from `first` on the given ones, as far as they are allowed."""
        tokens = list(tokens)
        seen = self._tokens[first : first + len(tokens)]
        same = len(seen)
        if seen != tokens[:same]:
            same = sum(1 for _ in takewhile(bool, map(eq, seen, tokens)))
        self._roll_back(len(self._tokens) - first - same)
        begun = thread_time()
        for token in tokens[same:]:
            accepted = self._accept(token)
            now = thread_time()
            self._spend(now - begun)
            if not accepted:
                return
            begun = now

    def _accept(self, token: int) -> bool:
        if self._ended:
            return False
        if token in self._stops and self._matcher.is_accepting():
            self._ended = True
        elif not self._matcher.try_consume_tokens([token]):
            return False
        self._tokens.append(token)
        return True

    def _roll_back(self, count: int) -> None:
        if count == 0:
            return
        del self._tokens[len(self._tokens) - count :]
        self._matcher.rollback(count - self._ended)
        self._ended = False

    def _spend(self, seconds: float) -> None:
        """Also raises what llguidance has found: one of its own limits."""
        self._spent_s += seconds
        if self._matcher.is_error():
            raise GrammarStuck(self._matcher.get_error())
        if self._spent_s > self._limit_s:
            raise GrammarStuck(f"{len(self._tokens)} tokens took {self._spent_s:.1f} s to follow")

    def _with_stops(self, words: Words) -> Words:
        """Stop tokens are allowed where the text is complete. Before `min_tokens`, and with
        `ignore_eos`, only where nothing else is, as they are where the grammar allows nothing."""
        if self._matcher.is_accepting():
            words |= self._stop_bits
        if self._never_stops or len(self._tokens) < self._min_tokens:
            others = words & ~self._stop_bits
            if others.any():
                return others
        return words if words.any() else self._stop_bits


def _only_token(words: Words) -> int | None:
    """The token whose bit alone is set; None if there are several."""
    places = words.nonzero()[0]
    if len(places) != 1:
        return None
    bits = int(words[places[0]]) & 0xFFFF_FFFF
    return None if bits & (bits - 1) else 32 * int(places[0]) + bits.bit_length() - 1


def _bits(tokens: Sequence[int], words: int) -> Words:
    bits = np.zeros(words * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
