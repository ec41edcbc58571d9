"""What the target and the drafters will say of each request, position by position.

The target's output is a function of (seed, position), so it is known without any model. A drafter
at the right prefix says the target's token at the rank that the acceptance model draws, and
elsewhere alternatives that are the same for all drafters, as near-misses mostly are.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator.acceptance import WRONG, Acceptance, Draws
from benchmarks.simulator.randomness import BLOCK, generator

STOP = 0
"""The token that ends an output."""
_REMEMBERED = 4096
"""Blocks of outputs: verifier and drafters all ask for them."""

Tokens = NDArray[np.int32]


class Target:
    """Says anything but STOP, up to the last token of a request's output."""

    def __init__(self, output_tokens: Mapping[str, int], vocab_size: int = 32_000) -> None:
        """Requests that are not in `output_tokens` go on until their max_tokens."""
        self._output_tokens = output_tokens
        self.vocab_size = vocab_size
        self.block = lru_cache(_REMEMBERED)(self._block)
        """(request, seed, block) → the output's tokens from block · BLOCK on, to be read only.
        What follows the end is as any text."""

    def _block(self, request: str, seed: int, block: int) -> Tokens:
        tokens = generator(seed, "target", block).integers(1, self.vocab_size, BLOCK, np.int32)
        last = self._output_tokens.get(request, 0) - 1 - block * BLOCK
        if 0 <= last < BLOCK:
            tokens[last] = STOP
        return tokens

    def output(self, request: str, seed: int) -> list[int]:
        """All of it, the STOP included."""
        length = self._output_tokens[request]
        blocks = [self.block(request, seed, block) for block in range(-(-length // BLOCK))]
        return np.concatenate(blocks)[:length].tolist()

    def alternatives(self, tokens: Tokens, count: int) -> Tokens:
        """[positions, count]: plausible mistakes, distinct, none of them right and none STOP."""
        nearby = tokens[:, None] + np.arange(count, dtype=np.int32)
        return nearby % (self.vocab_size - 1) + 1


class TargetScript:
    """One request's output, as far as it was asked for."""

    def __init__(self, target: Target, request: str, seed: int) -> None:
        self._target = target
        self._key = (request, seed)
        self._tokens: list[int] = []

    def upto(self, end: int) -> list[int]:
        """All tokens, at least `end` of them."""
        while len(self._tokens) < end:
            block = len(self._tokens) // BLOCK
            self._tokens += self._target.block(*self._key, block).tolist()
        return self._tokens


class DrafterScript:
    """What one drafter says of one request behind the right prefix."""

    def __init__(
        self,
        target: Target,
        acceptance: Acceptance,
        request: str,
        seed: int,
        domain: str,
        drafter: str,
    ) -> None:
        self._target = target
        self._acceptance = acceptance
        self._request, self._seed = request, seed
        self._of = (domain, drafter)
        siblings = 1 + len(acceptance.models[self._of].rank_shares)
        self.truth = np.empty(0, np.int32)
        self.tokens = np.empty((0, siblings), np.int32)
        """In the drafter's order of preference."""
        self.confidence = np.empty((0, siblings), np.float32)
        self.spoken: list[int] = []
        """From each position on, how many in a row have any proposal."""
        self.right: list[int] = []
        """And how many in a row have the right first choice."""

    def write(self, upto: int) -> None:
        """Goes on until all positions below `upto` are there."""
        while len(self.truth) < upto:
            block = len(self.truth) // BLOCK
            draws = self._acceptance.draws(self._seed, *self._of, block)
            truth = self._target.block(self._request, self._seed, block)
            self.truth = np.concatenate([self.truth, truth])
            self.tokens = np.concatenate([self.tokens, _choices(self._target, truth, draws)])
            self.confidence = np.concatenate([self.confidence, draws.confidence])
            self.spoken = _runs(self.confidence[:, 0] > 0)
            self.right = _runs(self.tokens[:, 0] == self.truth)


def _choices(target: Target, truth: Tokens, draws: Draws) -> Tokens:
    """The truth at its rank, alternatives around it."""
    choices = target.alternatives(truth, draws.confidence.shape[1])
    found = np.flatnonzero(draws.rank != WRONG)
    choices[found, draws.rank[found]] = truth[found]
    return choices


def _runs(holds: NDArray[np.bool_]) -> list[int]:
    """From each place on, how many in a row hold."""
    ends = np.append(np.flatnonzero(~holds), len(holds))
    places = np.arange(len(holds))
    return (ends[np.searchsorted(ends, places)] - places).tolist()
