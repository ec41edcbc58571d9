"""Output tokens of the simulated target and proposals of the drafters, position by position.

The target's output is a function of (seed, position). After the target's own prefix, a drafter
proposes the target's token at the rank that the acceptance model draws; its other proposals are the
same for all drafters, as wrong tokens mostly are.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cluster.plan.simulator.acceptance import WRONG, Acceptance, Draws
from cluster.plan.simulator.randomness import BLOCK, generator

STOP = 0
"""The token that ends an output."""
_CACHED_BLOCKS = 4096
"""Blocks of outputs that are kept: the verifier and all drafters read them."""

Tokens = NDArray[np.int32]


class Target:
    """Its outputs end with STOP, which occurs nowhere else in them."""

    def __init__(self, output_tokens: Mapping[str, int], vocab_size: int = 32_000) -> None:
        """Requests that are not in `output_tokens` run to their max_tokens."""
        self._output_tokens = output_tokens
        self.vocab_size = vocab_size
        self.block = lru_cache(_CACHED_BLOCKS)(self._block)
        """(request, seed, block) → the output's tokens from block · BLOCK on, read-only; those
        after the end are arbitrary."""

    def _block(self, request: str, seed: int, block: int) -> Tokens:
        tokens = generator(seed, "target", block).integers(1, self.vocab_size, BLOCK, np.int32)
        last = self._output_tokens.get(request, 0) - 1 - block * BLOCK
        if 0 <= last < BLOCK:
            tokens[last] = STOP
        return tokens

    def output(self, request: str, seed: int) -> list[int]:
        """The whole output, STOP included."""
        length = self._output_tokens[request]
        blocks = [self.block(request, seed, block) for block in range(-(-length // BLOCK))]
        return np.concatenate(blocks)[:length].tolist()

    def alternatives(self, tokens: Tokens, count: int) -> Tokens:
        """[positions, count]: distinct wrong tokens, none of them STOP."""
        nearby = tokens[:, None] + np.arange(count, dtype=np.int32)
        return nearby % (self.vocab_size - 1) + 1


class TargetOutput:
    """One request's output, computed as far as it is needed."""

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


class DrafterOutput:
    """One drafter's proposals for one request, at each position after the target's own prefix."""

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
        self._model = (domain, drafter)
        siblings = 1 + len(acceptance.models[self._model].rank_shares)
        self.target_tokens = np.empty(0, np.int32)
        self.tokens = np.empty((0, siblings), np.int32)
        """By position and rank."""
        self.confidence = np.empty((0, siblings), np.float32)
        self.proposing: list[int] = []
        """From each position on, the number of consecutive positions with a proposal."""
        self.right: list[int] = []
        """From each position on, the number of consecutive right first choices."""

    def extend(self, end: int) -> None:
        """Computes all positions below `end`."""
        while len(self.target_tokens) < end:
            block = len(self.target_tokens) // BLOCK
            draws = self._acceptance.draws(self._seed, *self._model, block)
            target = self._target.block(self._request, self._seed, block)
            self.target_tokens = np.concatenate([self.target_tokens, target])
            self.tokens = np.concatenate([self.tokens, _proposals(self._target, target, draws)])
            self.confidence = np.concatenate([self.confidence, draws.confidence])
            self.proposing = _runs(self.confidence[:, 0] > 0)
            self.right = _runs(self.tokens[:, 0] == self.target_tokens)


def _proposals(target: Target, tokens: Tokens, draws: Draws) -> Tokens:
    """The target's tokens at the drawn ranks, alternatives at all others."""
    proposals = target.alternatives(tokens, draws.confidence.shape[1])
    right = np.flatnonzero(draws.rank != WRONG)
    proposals[right, draws.rank[right]] = tokens[right]
    return proposals


def _runs(holds: NDArray[np.bool_]) -> list[int]:
    """From each place on, the number of consecutive places that hold."""
    ends = np.append(np.flatnonzero(~holds), len(holds))
    places = np.arange(len(holds))
    return (ends[np.searchsorted(ends, places)] - places).tolist()
