"""The attention layouts that Spin's Figure 12 compares, in place of the engine's own; all are equal
in result (tested).

The decomposed layout (Spin's request decomposition, section V-A) and the padded one, its baseline
in Figure 12, are padded attention over pieces of requests. Each request's KV rows are cut into
pieces of at most `length` rows. A batch row holds one piece, padded to `length`, and a copy of its
request's queries, padded to the most new rows of a request. The pieces of a request are merged by
log-sum-exp (eq. 13). If `length` is the longest request's, nothing is cut, and the batch is the
plain padded one.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.context import AttentionBatch, Layout, Scoring
from engine.attention.packed import PackedPlan

ROWS_PER_REQUEST = 2
"""The tensor width B as a multiple of the batch size. Spin fixes B and searches L: a larger B pads
less but copies more queries."""


class PiecesPlan:
    def __init__(self, batch: AttentionBatch, length: int) -> None:
        self._batch = batch
        self._length = length
        counts = -(-batch.kv_counts() // length)
        self._request = np.repeat(np.arange(len(batch)), counts)
        first_piece = np.cumsum(counts) - counts
        self._start = (np.arange(counts.sum()) - first_piece[self._request]) * length
        self._masks: dict[int | None, Tensor] = {}

        # Padding reads slot 0 and row 0; masks and `_parts` exclude it from the result.
        kv_rows = batch.kv_offsets[self._request, None] + self._start[:, None] + np.arange(length)
        in_request = kv_rows < batch.kv_offsets[self._request + 1, None]
        self._slots = self._tensor(batch.kv_slots[np.where(in_request, kv_rows, 0)] * in_request)

        self._most_rows = int(batch.row_counts().max())
        places = np.arange(self._most_rows)
        rows = batch.row_offsets[self._request, None] + places
        in_request = rows < batch.row_offsets[self._request + 1, None]
        self._rows = self._tensor(np.where(in_request, rows, 0))

        # [rows, pieces of a request]: where the parts of each row's result are, as indices into
        # [pieces · most_rows]; the index after the last one stands for no piece.
        nowhere = len(self._request) * self._most_rows
        row_request = np.repeat(np.arange(len(batch)), batch.row_counts())
        place = np.arange(len(row_request)) - batch.row_offsets[row_request]
        nth = np.arange(counts.max())
        piece = first_piece[row_request, None] + nth
        part = piece * self._most_rows + place[:, None]
        self._parts = self._tensor(np.where(nth < counts[row_request, None], part, nowhere))

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        heads, kv_heads = query.shape[1], keys.shape[1]
        mixed, lse = _attend_part(
            _group_queries(query[self._rows], kv_heads),
            keys[self._slots].transpose(1, 2),
            values[self._slots].transpose(1, 2),
            self._mask(scoring.window),
            scoring,
        )
        # [pieces · most_rows, heads, ...]
        mixed = _ungroup_queries(mixed, heads).flatten(0, 1)
        lse = _ungroup_queries(lse.unsqueeze(-1), heads).flatten(0, 1).squeeze(-1)
        return self._merge(mixed, lse).to(query.dtype)

    def _merge(self, mixed: Tensor, lse: Tensor) -> Tensor:
        """→ [rows, heads, d]"""
        if self._parts.shape[1] == 1:
            return mixed[self._parts[:, 0]]
        mixed = torch.cat([mixed, mixed.new_zeros(1, *mixed.shape[1:])])
        lse = torch.cat([lse, lse.new_full((1, lse.shape[1]), -torch.inf)])[self._parts]
        total = torch.logsumexp(lse, 1)
        shares = torch.exp(lse - total.unsqueeze(1))
        return (mixed[self._parts] * shares.unsqueeze(-1)).sum(1)

    def _mask(self, window: int | None) -> Tensor:
        """[pieces, 1, most_rows · group, length]"""
        if window not in self._masks:
            mask = np.zeros((len(self._request), self._most_rows, self._length), np.bool_)
            visible = [self._batch.visible(request, window) for request in range(len(self._batch))]
            for piece, (request, start) in enumerate(zip(self._request, self._start, strict=True)):
                part = visible[request][:, start : start + self._length]
                mask[piece, : part.shape[0], : part.shape[1]] = part
            grouped = self._tensor(mask).repeat_interleave(self._batch.group, dim=1)
            self._masks[window] = grouped.unsqueeze(1)
        return self._masks[window]

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(array).to(self._batch.device)


def _group_queries(query: Tensor, kv_heads: int) -> Tensor:
    """[..., rows, heads, d] → [..., kv_heads, rows · group, d]: the query heads that share a
    key head become rows, so that keys are not copied as by `repeat_kv`."""
    *outer, rows, heads, width = query.shape
    group = heads // kv_heads
    grouped = query.reshape(*outer, rows, kv_heads, group, width).transpose(-4, -3)
    return grouped.reshape(*outer, kv_heads, rows * group, width)


def _ungroup_queries(mixed: Tensor, heads: int) -> Tensor:
    """The inverse: [..., kv_heads, rows · group, d] → [..., rows, heads, d]."""
    *outer, kv_heads, grouped_rows, width = mixed.shape
    group = heads // kv_heads
    rows = grouped_rows // group
    ungrouped = mixed.reshape(*outer, kv_heads, rows, group, width).transpose(-4, -3)
    return ungrouped.reshape(*outer, rows, heads, width)


def _attend_part(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """query [..., n, d], keys and values [..., m, d], mask [..., n, m] → fp32 [..., n, d] and
    lse [..., n]; a fully masked row gives zeros and -inf."""
    # Scaled before the product, whose result is rounded to the model's dtype.
    scores = torch.matmul(query * scoring.scale, keys.transpose(-1, -2)).float()
    scores = scores.masked_fill(~mask, -torch.inf)
    highest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True)
    lse = (highest + torch.log(total)).squeeze(-1)
    shares = weights / total.clamp(min=torch.finfo(torch.float32).tiny)
    return torch.matmul(shares.to(values.dtype), values).float(), lse


def padded(batch: AttentionBatch) -> PiecesPlan:
    """Every request padded to the longest one: the baseline of Spin's Figure 12."""
    return PiecesPlan(batch, int(batch.kv_counts().max()))


def decomposed(batch: AttentionBatch) -> PiecesPlan:
    length = least_padded_length(batch.kv_counts(), ROWS_PER_REQUEST * len(batch))
    return PiecesPlan(batch, length)


def least_padded_length(lengths: NDArray[np.int64], width: int) -> int:
    """The piece length L with the fewest padded KV tokens that needs at most `width` rows.

    Among equals it is the longest, which copies fewest queries. For given numbers of pieces the
    shortest possible L pads least, and it is ⌈length / pieces⌉ of some request: only these are
    candidates.
    """
    if width < len(lengths):
        raise ValueError(f"{len(lengths)} requests need as many rows, not {width}")
    pieces = np.arange(1, width - len(lengths) + 2)
    candidates = np.unique(-(-lengths[:, None] // pieces))
    rows = (-(-lengths[:, None] // candidates)).sum(0)
    padding = np.where(rows <= width, rows * candidates, np.iinfo(np.int64).max)
    best = np.flatnonzero(padding == padding.min())[-1]
    return int(candidates[best])


LAYOUTS: dict[str, Layout] = {
    "packed": PackedPlan,
    "decomposed": decomposed,
    "padded": padded,
}
