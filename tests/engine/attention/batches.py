"""Random skewed attention batches, and a reference written from the definition."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.context import AttentionBatch, Scoring
from engine.attention.packed import PackedPlan

CPU = torch.device("cpu")


class GreedyPlan(PackedPlan):
    """Asks for more scratch than any machine has."""

    def __init__(self, batch: AttentionBatch) -> None:
        super().__init__(batch)
        slots = np.full_like(self.arrays.kv_counts, 2**50)
        self.arrays = self.arrays._replace(kv_counts=slots)


def random_tree_mask(rng: np.random.Generator, tail: int) -> NDArray[np.bool_]:
    """[tail, tail]: each row sees itself and its ancestors in a random tree."""
    mask = np.eye(tail, dtype=np.bool_)
    for row in range(1, tail):
        parent = int(rng.integers(-1, row))
        if parent >= 0:
            mask[row] |= mask[parent]
    return mask


def random_batch(
    rng: np.random.Generator, requests: int, *, most_rows: int = 6, group: int = 2
) -> AttentionBatch:
    """Committed lengths from 0 to 600, mostly short; trees and chains; tails of two forwards."""
    rows = rng.integers(1, most_rows + 1, requests)
    old_tail = rng.integers(0, 4, requests)
    committed = (600 * rng.random(requests) ** 3).astype(np.int64)
    kv_counts = committed + old_tail + rows
    masks: list[NDArray[np.bool_] | None] = []
    kv_positions, row_positions = [], []
    for request in range(requests):
        tail = int(old_tail[request] + rows[request])
        is_tree = rng.random() < 0.6
        tree = random_tree_mask(rng, tail) if is_tree else np.tri(tail, dtype=np.bool_)
        masks.append(tree[old_tail[request] :] if is_tree else None)
        depth = tree.sum(1) - 1
        positions = committed[request] + depth
        kv_positions.append(np.concatenate([np.arange(committed[request]), positions]))
        row_positions.append(positions[old_tail[request] :])
    return AttentionBatch(
        row_offsets=np.cumsum([0, *rows]),
        kv_offsets=np.cumsum([0, *kv_counts]),
        committed=committed,
        masks=tuple(masks),
        kv_slots=rng.permutation(int(kv_counts.sum()) + 50)[: kv_counts.sum()],
        row_positions=np.concatenate(row_positions),
        kv_positions=np.concatenate(kv_positions),
        group=group,
        device=CPU,
    )


def random_tensors(
    rng: np.random.Generator,
    batch: AttentionBatch,
    *,
    heads: int = 4,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and a pool of keys and values."""
    slots = int(batch.kv_slots.max()) + 1

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(2 * rng.standard_normal(shape, np.float32)).to(dtype)

    rows, kv_heads = int(batch.row_offsets[-1]), heads // batch.group
    return (
        normal(rows, heads, head_dim),
        normal(slots, kv_heads, head_dim),
        normal(slots, kv_heads, head_dim),
    )


def reference(
    batch: AttentionBatch, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring
) -> Tensor:
    """Row by row and head by head, in float64, from the definition."""
    query, keys, values = query.double(), keys.double(), values.double()
    group = query.shape[1] // keys.shape[1]
    mixed = torch.zeros_like(query)
    for request in range(len(batch)):
        kv = batch.kv_rows(request)
        committed, slots = batch.committed[request], batch.kv_slots[kv]
        mask = batch.masks[request]
        for place, row in enumerate(range(*batch.row_offsets[request : request + 2])):
            tail = len(slots) - committed
            new = int(np.diff(batch.row_offsets)[request])
            seen_tail = np.arange(tail) <= tail - new + place if mask is None else mask[place]
            seen = np.concatenate([np.ones(committed, np.bool_), seen_tail])
            if scoring.window is not None:
                seen &= batch.kv_positions[kv] > batch.row_positions[row] - scoring.window
            seen_slots = torch.from_numpy(slots[seen])
            for head in range(query.shape[1]):
                scores = keys[seen_slots, head // group] @ query[row, head] * scoring.scale
                weights = torch.softmax(scores, 0)
                mixed[row, head] = weights @ values[seen_slots, head // group]
    return mixed
