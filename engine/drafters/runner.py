"""Runs a model drafter's model."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from engine.drafters.beam import GrowingTrees
from engine.model import PackedModel, Segment
from engine.sampling.sampler import candidates, choose
from engine.sampling.vocabulary import ReducedVocabulary
from engine.scopes import Scope


class Chunk(NamedTuple):
    """Committed tokens of one job that enter its KV rows in one forward."""

    job: int
    tokens: Sequence[int]
    grows: bool
    """Whether these end the job's committed tokens and the first tree level grows from them."""
    first: int
    """The index of the first of them among the committed tokens."""

    def rows_with_logits(self, scored: bool) -> range:
        """The rows whose logits are computed: all if scored, else the last one if a tree grows."""
        rows = len(self.tokens)
        return range(0 if scored else rows - 1 if self.grows else rows, rows)


class DraftRunner(Protocol):
    """A drafter's model with its KV rows: committed ones, then those of draft tree nodes."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int:
        """Rows that one request may have: bounded by the model's context and the KV pool."""
        ...

    def open(self, request: str, tokens: Sequence[int], scope: Scope) -> int:
        """How many committed rows the request has; a new one may start with rows from its scope's
        prefix cache."""
        ...

    def keep(self, request: str, length: int, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Keeps the first `length` committed rows, then (with all of them kept) the draft rows
        `path` as the committed rows of `tokens`; drops all others."""
        ...

    def release(self, request: str) -> None:
        """Drops all rows of a request; an unknown one is no error."""
        ...

    def extend(self, trees: GrowingTrees, chunks: Sequence[Chunk]) -> list[list[int]]:
        """Adds committed rows, and level 1 to the trees of chunks that grow.

        Returns for each chunk of a scored job the token that the model would have chosen after
        each of its tokens. OutOfBlocks leaves everything as it was.
        """
        ...

    def step(self, trees: GrowingTrees, drafting: Sequence[int]) -> None:
        """Runs the deepest level of these jobs' trees and adds the next one. OutOfBlocks leaves
        everything as it was."""
        ...


def growing_rows(trees: GrowingTrees, chunks: Sequence[Chunk]) -> list[int]:
    """Which of all chunks' rows with logits the trees grow from."""
    ends = accumulate(len(chunk.rows_with_logits(trees.jobs[chunk.job].scored)) for chunk in chunks)
    return [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.grows]


def chosen_tokens(
    trees: GrowingTrees,
    chunks: Sequence[Chunk],
    logits: Tensor,
    reduced: ReducedVocabulary | None = None,
) -> list[list[int]]:
    """The token chosen after each row of scored chunks, given all chunks' logits."""
    chosen: list[list[int]] = []
    end = 0
    for chunk in chunks:
        job = trees.jobs[chunk.job]
        start, end = end, end + len(chunk.rows_with_logits(job.scored))
        rows = job.scored_rows(chunk.first, len(chunk.tokens)) if job.scored else []
        chosen.append(choose(logits[start:end], rows, reduced) if rows else [])
    return chosen


def sample_level(
    trees: GrowingTrees,
    drafting: Sequence[int],
    logits: Tensor,
    reduced: ReducedVocabulary | None = None,
) -> None:
    """Adds a level to these jobs' trees from the logits of their frontier rows."""
    rows = [row for job in drafting for row in trees.rows(job)]
    width = max(trees.jobs[job].width for job in drafting)
    tokens, confidence = candidates(logits, rows, width, reduced)
    trees.grow(drafting, tokens, confidence)


class PackedRunner:
    """Any model that the packed forward runs, on any device."""

    def __init__(self, model: PackedModel, reduced: ReducedVocabulary | None = None) -> None:
        """`reduced`: what its logits are of, if not of all tokens."""
        self.model = model
        self.reduced = reduced

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_context(self) -> int:
        return min(self.model.max_context, self.model.kv.capacity)

    def open(self, request: str, tokens: Sequence[int], scope: Scope) -> int:
        kv = self.model.kv
        return kv.length(request) if request in kv else kv.open(request, tokens, scope)

    def keep(self, request: str, length: int, path: Sequence[int], tokens: Sequence[int]) -> None:
        kv = self.model.kv
        if length < kv.length(request):
            kv.truncate(request, length)
        kv.commit(request, path, tokens)

    def release(self, request: str) -> None:
        self.model.kv.release(request)

    def extend(self, trees: GrowingTrees, chunks: Sequence[Chunk]) -> list[list[int]]:
        kv = self.model.kv
        segments = []
        for chunk in chunks:
            job, rows = trees.jobs[chunk.job], len(chunk.tokens)
            segments.append(
                Segment(
                    job.request,
                    np.array(chunk.tokens, np.int32),
                    np.arange(chunk.first, chunk.first + rows, dtype=np.int32),
                    mask=None,
                    logits=np.array(chunk.rows_with_logits(job.scored), np.int32),
                )
            )
        logits = self.model.forward(segments)
        for segment, chunk in zip(segments, chunks, strict=True):
            kv.commit(segment.request, range(len(chunk.tokens)), chunk.tokens)
        drafting = [chunk.job for chunk in chunks if chunk.grows]
        self._grow(trees, drafting, logits[growing_rows(trees, chunks)])
        return chosen_tokens(trees, chunks, logits, self.reduced)

    def step(self, trees: GrowingTrees, drafting: Sequence[int]) -> None:
        segments = []
        for number in drafting:
            frontier, job = trees.frontier(number), trees.jobs[number]
            tokens = trees.arrays.tokens[number, frontier.start : frontier.stop]
            position = len(job.committed) - 1 + int(trees.arrays.depth[number])
            segments.append(
                Segment(
                    job.request,
                    tokens,
                    np.full(len(tokens), position, np.int32),
                    mask=None if job.width == 1 else trees.ancestors(number),
                    logits=np.arange(len(tokens), dtype=np.int32),
                )
            )
        self._grow(trees, drafting, self.model.forward(segments))

    def _grow(self, trees: GrowingTrees, drafting: Sequence[int], logits: Tensor) -> None:
        if drafting:
            sample_level(trees, drafting, logits, self.reduced)
