"""Packed attention on a CPU: one compiled kernel walks over the requests' KV slots in the pool,
without padding and without copies. And the handler of attention over a pool, by any plan."""

from dataclasses import dataclass

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.context import AttentionBatch, AttentionPlan, Numbers, Scoring, WalkArrays
from engine.attention.hook import LayerCall
from engine.attention.walk import walk_parallel, walk_part
from engine.kv.cache import KVCache

BLOCK_LINES = 48
"""New rows × query heads per key head in a block, whose queries and sums fit the nearest cache."""
NO_WINDOW = np.iinfo(np.int64).max

# Several models may run in threads of one process, which numba's default pool aborts.
numba.config.THREADING_LAYER = "threadsafe"


class PackedPlan:
    def __init__(self, batch: AttentionBatch) -> None:
        self.arrays = _walk_arrays(batch)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        mixed = torch.empty(query.shape, dtype=query.dtype)
        threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
        arguments = (
            self.arrays,
            stored(query),
            stored(keys),
            stored(values),
            scoring.scale,
            NO_WINDOW if scoring.window is None else scoring.window,
            stored(mixed),
        )
        if threads == 1:
            walk_part(0, 1, *arguments)
        else:
            numba.set_num_threads(threads)
            done = np.zeros(threads, np.bool_)
            walk_parallel(done, *arguments)
            if not done.all():
                raise MemoryError("a thread of attention found no memory")
        return mixed


def stored(numbers: Tensor) -> Numbers:
    """The tensor as the kernel's array."""
    if numbers.dtype == torch.float16:
        return numbers.numpy().view(np.uint16)
    return (numbers.view(torch.int16) if numbers.dtype == torch.bfloat16 else numbers).numpy()


def _walk_arrays(batch: AttentionBatch) -> WalkArrays:
    most_rows = max(1, BLOCK_LINES // batch.group)
    blocks: list[tuple[int, int, int, int, int]] = []
    masks: list[NDArray[np.bool_]] = []
    for request in range(len(batch)):
        rows, kv = batch.rows(request), batch.kv_rows(request)
        committed, count = int(batch.committed[request]), kv.stop - kv.start
        tail_mask = batch.tail_mask(request)
        is_causal = batch.masks[request] is None
        for first in range(rows.start, rows.stop, most_rows):
            end = min(first + most_rows, rows.stop)
            seen = count - (rows.stop - end) if is_causal else count
            blocks.append((first, end - first, kv.start, seen, committed))
            own = tail_mask[first - rows.start : end - rows.start, : seen - committed]
            masks.append(own.ravel())
    first_rows, row_counts, first_kvs, kv_counts, committed_counts = np.array(
        blocks, np.int64
    ).T.copy()
    return WalkArrays(
        first_rows,
        row_counts,
        first_kvs,
        kv_counts,
        committed_counts,
        np.cumsum([0, *(len(mask) for mask in masks[:-1])]),
        np.concatenate(masks),
        batch.kv_slots,
        batch.row_positions,
        batch.kv_positions,
    )


@dataclass(frozen=True, slots=True)
class PoolAttention:
    """A handler of attention: writes a layer's new keys and values into the pool, then attends."""

    kv: KVCache
    plan: AttentionPlan
    slots: NDArray[np.int64]
    """The slots of the new rows."""
    slot_index: Tensor
    """The same on the pool's device."""

    @property
    def walk_arrays(self) -> WalkArrays | None:
        """The arguments of the kernel that packed attention is."""
        return self.plan.arrays if isinstance(self.plan, PackedPlan) else None

    def __call__(self, call: LayerCall) -> Tensor:
        keys, values = self.kv.k[call.layer], self.kv.v[call.layer]
        keys.index_copy_(0, self.slot_index, call.keys)
        values.index_copy_(0, self.slot_index, call.values)
        return self.plan.attend(call.query, keys, values, call.scoring)
