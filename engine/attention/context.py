"""The attention inputs of one forward as flat arrays; built once, used by every layer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Request i has the new rows row_offsets[i]:row_offsets[i + 1], which attend to the KV rows
    kv_offsets[i]:kv_offsets[i + 1]: its committed rows, then its tail, which ends in the new rows.
    """

    row_offsets: NDArray[np.int64]
    kv_offsets: NDArray[np.int64]
    committed: NDArray[np.int64]
    """[requests]: how many of its KV rows are committed, so visible to all of its new rows."""
    masks: tuple[NDArray[np.bool_] | None, ...]
    """Per request [new rows, tail]; None is causal: each row sees the tail up to itself."""
    kv_slots: NDArray[np.int64]
    """The slot of each KV row in the pool."""
    row_positions: NDArray[np.int64]
    kv_positions: NDArray[np.int64]
    """Positions matter only to sliding windows; all other visibility is in the masks."""
    group: int
    """Query heads per key head."""
    device: torch.device

    def __len__(self) -> int:
        return len(self.committed)

    def rows(self, request: int) -> slice:
        return slice(int(self.row_offsets[request]), int(self.row_offsets[request + 1]))

    def kv_rows(self, request: int) -> slice:
        return slice(int(self.kv_offsets[request]), int(self.kv_offsets[request + 1]))

    def row_counts(self) -> NDArray[np.int64]:
        return np.diff(self.row_offsets)

    def kv_counts(self) -> NDArray[np.int64]:
        return np.diff(self.kv_offsets)

    def tail_mask(self, request: int) -> NDArray[np.bool_]:
        """[new rows, tail]"""
        mask = self.masks[request]
        if mask is not None:
            return mask
        rows, kv = self.rows(request), self.kv_rows(request)
        count = rows.stop - rows.start
        tail = kv.stop - kv.start - int(self.committed[request])
        return np.tri(count, tail, tail - count, dtype=np.bool_)

    def visible(self, request: int, window: int | None) -> NDArray[np.bool_]:
        """[new rows, KV rows] of one request, for a layer with that sliding window."""
        rows, kv = self.rows(request), self.kv_rows(request)
        mask = np.ones((rows.stop - rows.start, kv.stop - kv.start), np.bool_)
        mask[:, self.committed[request] :] = self.tail_mask(request)
        if window is not None:
            distance = self.row_positions[rows, None] - self.kv_positions[None, kv]
            mask &= distance < window
        return mask


class Scoring(NamedTuple):
    """How a layer turns query and key into a score, over all supported families."""

    scale: float
    window: int | None = None
    """A row sees only positions closer than this (Mistral, Gemma 3)."""


class AttentionPlan(Protocol):
    """Attention, prepared for one forward."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        """query [rows, heads, head_dim], keys and values [slots, kv_heads, head_dim] →
        [rows, heads, head_dim]. The new rows' keys and values must be in the pool already."""
        ...


Layout = Callable[[AttentionBatch], AttentionPlan]


Numbers = NDArray[np.float32] | NDArray[np.int16] | NDArray[np.uint16]
"""fp32, or the bits of bfloat16 (int16) or float16 (uint16)."""


class WalkArrays(NamedTuple):
    """The kernel's form of an AttentionBatch, cut into blocks."""

    first_rows: NDArray[np.int64]
    """[blocks], like all up to `mask_starts`."""
    row_counts: NDArray[np.int64]
    first_kvs: NDArray[np.int64]
    """Where the request's KV rows begin in `kv_slots`."""
    kv_counts: NDArray[np.int64]
    """How many of them the block may see."""
    committed: NDArray[np.int64]
    mask_starts: NDArray[np.int64]
    masks: NDArray[np.bool_]
    """The blocks' flat tail masks, [rows, tail] each."""
    kv_slots: NDArray[np.int64]
    row_positions: NDArray[np.int64]
    kv_positions: NDArray[np.int64]
