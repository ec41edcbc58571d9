"""Runs an EAGLE-3 head for many requests at once: a DraftRunner whose rows read features.

The linear layers process one flat list of rows, attention each request's rows by themselves. Rows
are counted as committed tokens, as in other runners, but the first token has none: there are no
features before it. Rows of drafted tokens are never kept, because they read the head's own output
where committed ones read the target's features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.drafters.beam import GrowingTrees
from engine.drafters.eagle3_head import Eagle3Head
from engine.drafters.runner import Chunk, chosen_tokens, growing_rows, sample_level
from engine.errors import OutOfBlocks
from engine.scopes import Scope


@dataclass(slots=True)
class _Rows:
    """One request's keys and values, [rows, kv heads, head_dim]: committed rows, then one for each
    node of its draft tree that has been run."""

    tokens: int = 0
    """Committed tokens that have been run."""
    kv: tuple[Tensor, Tensor] | None = None
    hidden: Tensor | None = None
    """The outputs of the last committed row and of the nodes' rows."""

    @property
    def committed(self) -> int:
        return max(self.tokens - 1, 0)

    def __len__(self) -> int:
        return 0 if self.kv is None else len(self.kv[0])


@dataclass(slots=True)
class _Part:
    """One request's rows of a forward."""

    request: str
    tokens: list[int]
    hidden: Tensor
    positions: list[int]
    mask: Tensor | None
    """[rows, kept rows + rows]: what each row sees. None: all, for
    which GPUs have faster kernels."""


@dataclass(slots=True)
class Eagle3Runner:
    head: Eagle3Head
    kv_tokens: int
    features: Callable[[str, int, int], Tensor]
    """The features of a request's positions from the first to the last (exclusive)."""
    _rows: dict[str, _Rows] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        return self.head.vocab_size

    @property
    def max_context(self) -> int:
        return min(self.head.max_context, self.kv_tokens)

    def length(self, request: str) -> int:
        """The committed tokens that have been run; 0 of an unknown request."""
        return self._rows[request].tokens if request in self._rows else 0

    def open(self, request: str, _tokens: Sequence[int], _scope: Scope) -> int:
        return self._rows.setdefault(request, _Rows()).tokens

    def keep(self, request: str, length: int, path: Sequence[int], _tokens: Sequence[int]) -> None:
        if path:
            raise ValueError("rows of drafted tokens have no features")
        rows = self._rows[request]
        rows.tokens = length
        if rows.kv is not None:
            keys, values = rows.kv
            rows.kv = (keys[: rows.committed], values[: rows.committed])
        rows.hidden = None

    def truncate(self, request: str, length: int) -> None:
        """Keeps at most the rows of so many committed tokens, and none that a forward which did
        not return has left."""
        if request in self._rows:
            self.keep(request, min(self._rows[request].tokens, length), [], [])

    def release(self, request: str) -> None:
        self._rows.pop(request, None)

    def drop_drafts(self) -> None:
        for request, rows in self._rows.items():
            self.keep(request, rows.tokens, [], [])

    @torch.inference_mode()
    def extend(self, trees: GrowingTrees, chunks: Sequence[Chunk]) -> list[list[int]]:
        parts = [self._committed_part(trees.jobs[chunk.job].request, chunk) for chunk in chunks]
        outputs = self._forward(parts)
        wanted = []
        for chunk, part, hidden in zip(chunks, parts, outputs, strict=True):
            self._rows[part.request].tokens = chunk.first + len(chunk.tokens)
            self._rows[part.request].hidden = hidden[-1:]
            without = len(chunk.tokens) - len(hidden)  # the first token of all has no row
            rows = chunk.rows_with_logits(trees.jobs[chunk.job].scored)
            some = [hidden[max(row - without, 0)] for row in rows if len(hidden)]
            wanted += some or [hidden.new_zeros(hidden.shape[1]) for _ in rows]
        hidden_rows = torch.stack(wanted) if wanted else outputs[0][:0]
        logits = self.head.logits(hidden_rows)
        drafting = [chunk.job for chunk in chunks if chunk.grows]
        if drafting:
            grown = logits[growing_rows(trees, chunks)]
            sample_level(trees, drafting, grown, self.head.vocabulary)
        return chosen_tokens(trees, chunks, logits, self.head.vocabulary)

    @torch.inference_mode()
    def step(self, trees: GrowingTrees, drafting: Sequence[int]) -> None:
        parts = [self._draft_part(trees, number) for number in drafting]
        outputs = self._forward(parts)
        for part, hidden in zip(parts, outputs, strict=True):
            rows = self._rows[part.request]
            assert rows.hidden is not None
            rows.hidden = torch.cat([rows.hidden, hidden])
        logits = self.head.logits(torch.cat(outputs))
        sample_level(trees, drafting, logits, self.head.vocabulary)

    def _committed_part(self, request: str, chunk: Chunk) -> _Part:
        first = max(chunk.first, 1)
        tokens = [*chunk.tokens[first - chunk.first :]]
        end = first + len(tokens)
        kept = self._rows[request].committed
        mask = None
        if len(tokens) > 1:
            mask = torch.ones(len(tokens), kept + len(tokens), dtype=torch.bool).tril(kept)
        hidden = self.head.fuse(self.features(request, first - 1, end - 1).to(self._device))
        return _Part(request, tokens, hidden, [*range(first - 1, end - 1)], mask)

    def _draft_part(self, trees: GrowingTrees, number: int) -> _Part:
        job, frontier = trees.jobs[number], trees.frontier(number)
        rows = self._rows[job.request]
        assert rows.hidden is not None
        parents = trees.arrays.parents[number, frontier.start : frontier.stop]
        # Row 0 is the last committed one, row 1 + n that of node n; the root is -1.
        hidden = rows.hidden[torch.from_numpy(parents + 1).to(self._device, torch.int64)]
        position = rows.committed - 1 + int(trees.arrays.depth[number])
        mask, ancestors = None, trees.ancestors(number)
        if not ancestors.all():
            committed = np.ones((len(frontier), rows.committed), np.bool_)
            mask = torch.from_numpy(np.concatenate([committed, ancestors], 1))
        return _Part(
            job.request,
            trees.arrays.tokens[number, frontier.start : frontier.stop].tolist(),
            hidden,
            [position] * len(frontier),
            mask,
        )

    def _forward(self, parts: Sequence[_Part]) -> list[Tensor]:
        """The outputs of each part's rows, whose keys and values are kept."""
        counts = [len(part.tokens) for part in parts]
        used = sum(len(rows) for rows in self._rows.values())
        if used + sum(counts) > self.kv_tokens:
            raise OutOfBlocks(sum(counts), self.kv_tokens - used)
        tokens = torch.tensor([token for part in parts for token in part.tokens])
        positions = torch.tensor([position for part in parts for position in part.positions])
        hidden = self.head(
            tokens.to(self._device, torch.int64),
            torch.cat([part.hidden for part in parts]),
            positions.to(self._device, torch.int64),
            partial(self._attend, parts, counts),
        )
        return list(hidden.split(counts))

    def _attend(
        self,
        parts: Sequence[_Part],
        counts: Sequence[int],
        query: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        mixed = []
        split = zip(query.split(counts), keys.split(counts), values.split(counts), strict=True)
        for part, (own_query, own_keys, own_values) in zip(parts, split, strict=True):
            rows = self._rows[part.request]
            if rows.kv is not None:
                own_keys = torch.cat([rows.kv[0], own_keys])
                own_values = torch.cat([rows.kv[1], own_values])
            rows.kv = (own_keys, own_values)
            if not len(own_query):
                continue
            # With a batch dimension torch takes its fused kernel, here in a quarter of the time.
            heads = scaled_dot_product_attention(
                own_query.transpose(0, 1)[None],
                own_keys.transpose(0, 1)[None],
                own_values.transpose(0, 1)[None],
                attn_mask=None if part.mask is None else part.mask.to(self._device),
                enable_gqa=True,
            )
            mixed.append(heads[0].transpose(0, 1))
        return torch.cat(mixed) if mixed else query

    @property
    def _device(self) -> torch.device:
        return self.head.vocabulary.target_ids.device
