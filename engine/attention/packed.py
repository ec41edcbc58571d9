"""Packed attention on a CPU: no padding, and for requests with few new rows no gather either.

Requests with few new rows (decoding, verification) go through one compiled kernel that walks over
their KV slots in the pool. For requests with many (prefill chunks) keys and values are gathered
first, as matrix products then use the processor's matrix units.
"""

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.attention.context import AttentionBatch, Scoring
from engine.attention.partial import add_sinks, attend_part, group_queries, ungroup_queries
from engine.attention.walk import WalkArrays, walk, walk_parallel

MOST_WALKED_LINES = 63
"""Lines (new rows of a request × query heads per key head) up to which walking is not slower than
gathering: between 17 and 63 lines torch's bfloat16 products take up to 8 times as long as with
fewer or more (docs/cpu_speed.md)."""
NO_WINDOW = np.iinfo(np.int64).max
NO_SINKS = np.empty(0, np.float32)

# Several models may run in threads of one process, which numba's default pool aborts.
numba.config.THREADING_LAYER = "threadsafe"


class PackedPlan:
    def __init__(self, batch: AttentionBatch) -> None:
        self._batch = batch
        few = batch.row_counts() * batch.group <= MOST_WALKED_LINES
        self._walked = np.flatnonzero(few)
        self._gathered = [_Gathered(batch, int(request)) for request in np.flatnonzero(~few)]
        if len(self._walked):
            self._arrays = _walk_arrays(batch, self._walked)

    @property
    def walk_arrays(self) -> WalkArrays | None:
        """The kernel's arguments, if it computes all requests."""
        return None if self._gathered else self._arrays

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        if not self._gathered:
            return self._walk(query, keys, values, scoring)
        mixed = torch.empty(query.shape, dtype=query.dtype)
        if len(self._walked):
            mixed.copy_(self._walk(query, keys, values, scoring))
        for request in self._gathered:
            mixed[request.rows] = request.attend(query, keys, values, scoring)
        return mixed

    def _walk(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        """Rows of requests that are not walked stay uninitialised."""
        mixed = torch.empty(query.shape, dtype=query.dtype)
        threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
        arguments = (
            self._arrays,
            _stored(query),
            _stored(keys),
            _stored(values),
            scoring.scale,
            NO_WINDOW if scoring.window is None else scoring.window,
            scoring.softcap or 0.0,
            NO_SINKS if scoring.sinks is None else scoring.sinks.detach().float().numpy(),
            _stored(mixed),
        )
        if threads == 1:
            walk(*arguments)
        else:
            numba.set_num_threads(threads)
            walk_parallel(threads, *arguments)
        return mixed


def _stored(numbers: Tensor) -> NDArray[np.float32] | NDArray[np.int16]:
    """The tensor as numpy; bfloat16, which numpy lacks, as its bits."""
    return (numbers.view(torch.int16) if numbers.dtype == torch.bfloat16 else numbers).numpy()


def _walk_arrays(batch: AttentionBatch, walked: NDArray[np.int64]) -> WalkArrays:
    masks = [batch.tail_mask(int(request)).ravel() for request in walked]
    starts = np.cumsum([0, *(len(mask) for mask in masks[:-1])])
    return WalkArrays(
        walked,
        batch.row_offsets,
        batch.kv_offsets,
        batch.kv_slots,
        batch.committed,
        np.concatenate(masks),
        starts,
        batch.row_positions,
        batch.kv_positions,
    )


class _Gathered:
    """A request with many new rows, whose keys and values are gathered."""

    def __init__(self, batch: AttentionBatch, request: int) -> None:
        self.rows = batch.rows(request)
        self._batch = batch
        self._request = request
        self._slots = torch.from_numpy(batch.kv_slots[batch.kv_rows(request)])
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        heads, kv_heads = query.shape[1], keys.shape[1]
        mask = self._mask(scoring.window)
        grouped = group_queries(query[self.rows], kv_heads)
        key_rows = keys[self._slots].transpose(0, 1)
        value_rows = values[self._slots].transpose(0, 1)
        if scoring.softcap is None and scoring.sinks is None:
            mixed = functional.scaled_dot_product_attention(
                grouped.unsqueeze(0),
                key_rows.unsqueeze(0),
                value_rows.unsqueeze(0),
                attn_mask=mask,
                scale=scoring.scale,
            )
            return ungroup_queries(mixed[0], heads)
        mixed, lse = attend_part(grouped, key_rows, value_rows, mask, scoring)
        row_lse = ungroup_queries(lse.unsqueeze(-1), heads).squeeze(-1)
        return add_sinks(ungroup_queries(mixed, heads), row_lse, scoring.sinks).to(query.dtype)

    def _mask(self, window: int | None) -> Tensor:
        """[rows · group, KV rows]"""
        if window not in self._masks:
            visible = self._batch.visible(self._request, window)
            grouped = torch.from_numpy(visible).repeat_interleave(self._batch.group, dim=0)
            self._masks[window] = grouped
        return self._masks[window]
