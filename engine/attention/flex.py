"""Packed attention on a GPU: one fused kernel over all requests (flex_attention).

A per-request loop would be bound by kernel launches there. The block mask lets the kernel skip
blocks that no row may see, which are nearly all blocks between different requests.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from engine.attention.context import AttentionBatch, Scoring


@cache
def _compiled() -> Callable[..., Any]:
    """Compiled at first use: it takes a second, which only a process with a GPU should spend."""
    return torch.compile(flex_attention, dynamic=True)


class FusedPlan:
    def __init__(self, batch: AttentionBatch) -> None:
        self._device = batch.device
        self._slots = self._tensor(batch.kv_slots)
        requests = np.arange(len(batch))
        row_request = np.repeat(requests, batch.row_counts())
        kv_request = np.repeat(requests, batch.kv_counts())
        self._row_request = self._tensor(row_request)
        self._kv_request = self._tensor(kv_request)
        self._row_positions = self._tensor(batch.row_positions)
        self._kv_positions = self._tensor(batch.kv_positions)
        in_request = np.arange(len(kv_request)) - batch.kv_offsets[kv_request]
        in_tail = in_request - batch.committed[kv_request]
        self._in_tail = self._tensor(in_tail)

        tails = batch.kv_counts() - batch.committed
        masks = [batch.tail_mask(request).ravel() for request in range(len(batch))]
        # The mask is also evaluated for other requests' tails, so it may be read beyond its end.
        spare = np.zeros(int(tails.max()), np.bool_)
        self._tail_masks = self._tensor(np.concatenate([*masks, spare]))
        first = np.cumsum([0, *(len(mask) for mask in masks[:-1])])
        place = np.arange(len(row_request)) - batch.row_offsets[row_request]
        self._mask_start = self._tensor(first[row_request] + place * tails[row_request])
        self._block_masks: dict[int | None, BlockMask] = {}

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        attention = _compiled() if query.is_cuda else flex_attention
        mixed = attention(
            query.transpose(0, 1).unsqueeze(0),
            keys[self._slots].transpose(0, 1).unsqueeze(0),
            values[self._slots].transpose(0, 1).unsqueeze(0),
            block_mask=self._block_mask(scoring.window),
            scale=scoring.scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        rows: Tensor = mixed[0].transpose(0, 1).to(query.dtype)
        return rows

    def _block_mask(self, window: int | None) -> BlockMask:
        if window not in self._block_masks:

            def visible(_batch: Tensor, _head: Tensor, row: Tensor, kv: Tensor) -> Tensor:
                in_tail = self._in_tail[kv]
                mask = self._tail_masks[self._mask_start[row] + in_tail.clamp(min=0)]
                seen = (self._row_request[row] == self._kv_request[kv]) & ((in_tail < 0) | mask)
                if window is not None:
                    seen &= self._row_positions[row] - self._kv_positions[kv] < window
                return seen

            self._block_masks[window] = create_block_mask(
                visible, None, None, len(self._row_request), len(self._slots), self._device
            )
        return self._block_masks[window]

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.bool_]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
