"""The runner of tiny Llamas on a CPU: compiled loops without torch between the operators."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from transformers import LlamaForCausalLM

from engine.drafters import tiny_steps
from engine.drafters.beam import GrowingTrees
from engine.drafters.runner import Chunk, chosen_tokens, growing_rows, sample_level
from engine.drafters.tiny_kernels import PAGE, Floats
from engine.drafters.tiny_pages import PagedRequest, PagePool
from engine.drafters.tiny_weights import pack
from engine.scopes import Scope


class TinyRunner:
    """A DraftRunner without a prefix cache: it computes rows faster than it could look them up."""

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

    def open(self, request: str, tokens: Sequence[int], _scope: Scope) -> int:
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

    def extend(self, trees: GrowingTrees, chunks: Sequence[Chunk]) -> list[list[int]]:
        requests = [self._requests[trees.jobs[chunk.job].request] for chunk in chunks]
        counts = [len(chunk.tokens) for chunk in chunks]
        self._pool.reserve(
            requests, [one.length + count for one, count in zip(requests, counts, strict=True)]
        )
        rows_with_logits = [
            offset + row
            for chunk, offset in zip(chunks, np.cumsum([0, *counts[:-1]]).tolist(), strict=True)
            for row in chunk.rows_with_logits(trees.jobs[chunk.job].scored)
        ]
        logits = tiny_steps.extend(
            *self._weights,
            self._pool.kv,
            self._pool.tables,
            np.array([one.table_row for one in requests]),
            np.array([one.length for one in requests]),
            np.array(list(chain.from_iterable(chunk.tokens for chunk in chunks)), np.int32),
            np.array(counts),
            np.array(rows_with_logits, np.int64),
        )
        for one, count in zip(requests, counts, strict=True):
            one.length += count
        rows = growing_rows(trees, chunks)
        if rows:
            self._grow(trees, [chunk.job for chunk in chunks if chunk.grows], logits[rows])
        return chosen_tokens(trees, chunks, torch.from_numpy(logits[:, : self._vocab_size]))

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
            np.array([one.table_row for one in requests]),
            np.array([one.length for one in requests]),
            *trees.packed,
            np.array(drafting),
        )
        if trees.samples_raw_logits:
            tiny_steps.step_and_grow(*arrays, self._vocab_size, *trees.row_params)
        else:
            self._sample(trees, drafting, tiny_steps.step(*arrays))

    def _grow(self, trees: GrowingTrees, drafting: Sequence[int], logits: Floats) -> None:
        if trees.samples_raw_logits:
            tiny_steps.grow(
                logits,
                self._vocab_size,
                *trees.row_params,
                *trees.packed,
                np.array(drafting),
            )
        else:
            self._sample(trees, drafting, logits)

    def _sample(self, trees: GrowingTrees, drafting: Sequence[int], logits: Floats) -> None:
        # The last weight tile may reach beyond the vocabulary.
        sample_level(trees, drafting, torch.from_numpy(logits[:, : self._vocab_size]))
