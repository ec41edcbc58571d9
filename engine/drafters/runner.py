"""What a model drafter needs of its model; two runners, equal in result (tested)."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from engine.drafters.beam import GrowingTrees
from engine.model import PackedModel, Segment
from engine.sampling.sampler import candidates, choose


class Piece(NamedTuple):
    """Committed tokens of one job that enter its KV rows in one forward."""

    job: int
    tokens: Sequence[int]
    grows: bool
    """These are its last committed tokens, and a tree is to grow from them."""
    first: int
    """The place of the first of them in the request."""

    def wanted(self, scored: bool) -> range:
        """The rows whose logits matter."""
        rows = len(self.tokens)
        return range(0 if scored else rows - 1 if self.grows else rows, rows)


class DraftRunner(Protocol):
    """A drafter's model with its KV rows: committed ones, then those of draft tree nodes."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int:
        """Rows that one request may have, of the model's context and the KV pool's size."""
        ...

    def open(self, request: str, tokens: Sequence[int]) -> int:
        """How many committed rows the request has. A new one may find some of its tokens' rows
        in a prefix cache."""
        ...

    def keep(self, request: str, length: int, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Keeps the first `length` committed rows, then (with all of them kept) the draft rows
        `path` as the committed rows of `tokens`; drops all others."""
        ...

    def release(self, request: str) -> None:
        """Drops all rows of a request; an unknown one is no error."""
        ...

    def extend(self, trees: GrowingTrees, pieces: Sequence[Piece]) -> list[list[int]]:
        """Adds committed rows, and level 1 to the trees of pieces that grow. Returns for each
        piece the tokens that the model would have chosen behind its own, for those of scored
        jobs. OutOfBlocks leaves everything as it was."""
        ...

    def step(self, trees: GrowingTrees, drafting: Sequence[int]) -> None:
        """Adds the deepest levels' rows, and one level more, to the trees of these jobs.
        OutOfBlocks leaves everything as it was."""
        ...


def growing(trees: GrowingTrees, pieces: Sequence[Piece]) -> list[int]:
    """Among the wanted rows of all pieces, those from which trees grow."""
    ends = accumulate(len(piece.wanted(trees.jobs[piece.job].scored)) for piece in pieces)
    return [end - 1 for piece, end in zip(pieces, ends, strict=True) if piece.grows]


def choices(trees: GrowingTrees, pieces: Sequence[Piece], logits: Tensor) -> list[list[int]]:
    """Of scored pieces the token chosen behind each row; `logits` of all pieces' wanted rows."""
    chosen: list[list[int]] = []
    end = 0
    for piece in pieces:
        job = trees.jobs[piece.job]
        begin, end = end, end + len(piece.wanted(job.scored))
        rows = job.scored_rows(piece.first, len(piece.tokens)) if job.scored else []
        chosen.append(choose(logits[begin:end], rows) if rows else [])
    return chosen


class PackedRunner:
    """Any model that the packed forward runs, on any device."""

    def __init__(self, model: PackedModel) -> None:
        self._model = model

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def max_context(self) -> int:
        return min(self._model.max_context, self._model.kv.capacity)

    def open(self, request: str, tokens: Sequence[int]) -> int:
        kv = self._model.kv
        return kv.length(request) if request in kv else kv.open(request, tokens)

    def keep(self, request: str, length: int, path: Sequence[int], tokens: Sequence[int]) -> None:
        kv = self._model.kv
        if length < kv.length(request):
            kv.truncate(request, length)
        kv.commit(request, path, tokens)

    def release(self, request: str) -> None:
        self._model.kv.release(request)

    def extend(self, trees: GrowingTrees, pieces: Sequence[Piece]) -> list[list[int]]:
        kv = self._model.kv
        segments = []
        for piece in pieces:
            job, rows = trees.jobs[piece.job], len(piece.tokens)
            segments.append(
                Segment(
                    job.request,
                    np.array(piece.tokens, np.int32),
                    np.arange(piece.first, piece.first + rows, dtype=np.int32),
                    mask=None,
                    logits=np.array(piece.wanted(job.scored), np.int32),
                )
            )
        logits = self._model.forward(segments)
        for segment, piece in zip(segments, pieces, strict=True):
            kv.commit(segment.request, range(len(piece.tokens)), piece.tokens)
        self._grow(
            trees, [piece.job for piece in pieces if piece.grows], logits[growing(trees, pieces)]
        )
        return choices(trees, pieces, logits)

    def step(self, trees: GrowingTrees, drafting: Sequence[int]) -> None:
        segments = []
        for job in drafting:
            frontier, one = trees.frontier(job), trees.jobs[job]
            tokens = trees.arrays.tokens[job, frontier.start : frontier.stop]
            position = len(one.committed) - 1 + int(trees.arrays.depth[job])
            segments.append(
                Segment(
                    one.request,
                    tokens,
                    np.full(len(tokens), position, np.int32),
                    mask=None if one.width == 1 else trees.ancestors(job),
                    logits=np.arange(len(tokens), dtype=np.int32),
                )
            )
        self._grow(trees, drafting, self._model.forward(segments))

    def _grow(self, trees: GrowingTrees, drafting: Sequence[int], logits: Tensor) -> None:
        if not drafting:
            return
        rows = [row for job in drafting for row in trees.rows(job)]
        width = max(trees.jobs[job].width for job in drafting)
        tokens, confidence = candidates(logits, rows, width)
        trees.grow(drafting, tokens, confidence)
