"""The runner of tiny Llamas on a CPU: no torch between a draft step's operators."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from transformers import LlamaForCausalLM

from engine.drafters import tiny_steps
from engine.drafters.beam import GrowingTrees
from engine.drafters.runner import Piece, choices, growing
from engine.drafters.tiny_kernels import PAGE, Floats
from engine.drafters.tiny_pages import PagedRequest, PagePool
from engine.drafters.tiny_weights import pack
from engine.sampling.sampler import candidates


class TinyRunner:
    """A DraftRunner. Shares no prefixes: it computes rows faster than it could look them up."""

    def __init__(self, model: LlamaForCausalLM, *, kv_tokens: int) -> None:
        self._vocab_size: int = model.config.vocab_size
        self._context: int = model.config.max_position_embeddings
        self._weights = pack(model)
        self._pool = PagePool(
            pages=-(-kv_tokens // PAGE),
            layers=model.config.num_hidden_layers,
            kv_heads=model.config.num_key_value_heads,
            head_dim=model.config.head_dim,
        )
        self._requests: dict[str, PagedRequest] = {}

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def max_context(self) -> int:
        return min(self._context, self._pool.capacity)

    def open(self, request: str, tokens: Sequence[int]) -> int:
        if request not in self._requests:
            self._requests[request] = self._pool.add()
        return self._requests[request].length

    def keep(self, request: str, length: int, path: Sequence[int], tokens: Sequence[int]) -> None:
        paged = self._requests[request]
        if path:
            start = paged.length
            self._pool.move(paged, [start + node for node in path], range(start, start + len(path)))
        self._pool.shrink(paged, length + len(path))

    def release(self, request: str) -> None:
        paged = self._requests.pop(request, None)
        if paged is not None:
            self._pool.remove(paged)

    def extend(self, trees: GrowingTrees, pieces: Sequence[Piece]) -> list[list[int]]:
        requests = [self._requests[trees.jobs[piece.job].request] for piece in pieces]
        counts = [len(piece.tokens) for piece in pieces]
        self._pool.reserve(
            requests, [one.length + count for one, count in zip(requests, counts, strict=True)]
        )
        wanted = [
            offset + row
            for piece, offset in zip(pieces, np.cumsum([0, *counts[:-1]]).tolist(), strict=True)
            for row in piece.wanted(trees.jobs[piece.job].scored)
        ]
        logits = tiny_steps.extend(
            *self._weights,
            self._pool.kv,
            self._pool.tables,
            np.array([one.line for one in requests]),
            np.array([one.length for one in requests]),
            np.array(list(chain.from_iterable(piece.tokens for piece in pieces)), np.int32),
            np.array(counts),
            np.array(wanted, np.int64),
        )
        for one, count in zip(requests, counts, strict=True):
            one.length += count
        rows = growing(trees, pieces)
        if rows:
            self._grow(trees, [piece.job for piece in pieces if piece.grows], logits[rows])
        return choices(trees, pieces, torch.from_numpy(logits[:, : self._vocab_size]))

    def step(self, trees: GrowingTrees, drafting: Sequence[int]) -> None:
        requests = [self._requests[trees.jobs[job].request] for job in drafting]
        sizes = trees.arrays.size
        self._pool.reserve(
            requests,
            [one.length + int(sizes[job]) for one, job in zip(requests, drafting, strict=True)],
        )
        arrays = (
            *self._weights,
            self._pool.kv,
            self._pool.tables,
            np.array([one.line for one in requests]),
            np.array([one.length for one in requests]),
            *trees.packed,
            np.array(drafting),
        )
        if trees.plain:
            tiny_steps.step_and_grow(*arrays, self._vocab_size, *trees.knobs)
        else:
            self._sample(trees, drafting, tiny_steps.step(*arrays))

    def _grow(self, trees: GrowingTrees, drafting: Sequence[int], logits: Floats) -> None:
        if trees.plain:
            tiny_steps.grow(
                logits, self._vocab_size, *trees.knobs, *trees.packed, np.array(drafting)
            )
        else:
            self._sample(trees, drafting, logits)

    def _sample(self, trees: GrowingTrees, drafting: Sequence[int], logits: Floats) -> None:
        rows = [row for job in drafting for row in trees.rows(job)]
        width = max(trees.jobs[job].width for job in drafting)
        # The last weight tile may reach beyond the vocabulary.
        scores = torch.from_numpy(logits[:, : self._vocab_size])
        tokens, confidence = candidates(scores, rows, width)
        trees.grow(drafting, tokens, confidence)
