"""Attention over tables of fixed shape, so that a CUDA graph can replay it: every row by itself.

It copies a request's KV rows once for each of its new rows, which few rows of small models bear.
"""

import numpy as np
import torch
from torch import Tensor

from engine.attention.context import AttentionBatch, Scoring
from engine.attention.partial import add_sinks, attend_part, group_queries, ungroup_queries


class StaticPlan:
    """At most `rows` new rows over at most `context` KV rows each. The tensors stay where they are;
    `load` fills them for the next forward. Rows behind the batch's repeat its last one."""

    def __init__(self, rows: int, context: int, device: torch.device) -> None:
        self._shape = rows, context
        self._slots = torch.zeros(self._shape, dtype=torch.int64, device=device)
        self._visible = torch.zeros(self._shape, dtype=torch.bool, device=device)
        self._distance = torch.zeros(self._shape, dtype=torch.int64, device=device)

    def load(self, batch: AttentionBatch) -> None:
        slots, distance = (np.zeros(self._shape, np.int64) for _ in range(2))
        visible = np.zeros(self._shape, np.bool_)
        for request in range(len(batch)):
            rows, kv = batch.rows(request), batch.kv_rows(request)
            count = kv.stop - kv.start
            slots[rows, :count] = batch.kv_slots[kv]
            visible[rows, :count] = batch.visible(request, None)
            distance[rows, :count] = batch.row_positions[rows, None] - batch.kv_positions[None, kv]
        last = int(batch.row_offsets[-1])
        tables = ((self._slots, slots), (self._visible, visible), (self._distance, distance))
        for table, values in tables:
            values[last:] = values[last - 1]
            table.copy_(torch.from_numpy(values))

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        rows, heads = query.shape[:2]
        visible = self._visible
        if scoring.window is not None:
            visible = visible & (self._distance < scoring.window)
        mixed, lse = attend_part(
            group_queries(query.unsqueeze(1), keys.shape[1]),
            keys[self._slots[:rows]].transpose(1, 2),
            values[self._slots[:rows]].transpose(1, 2),
            visible[:rows, None, None],
            scoring,
        )
        mixed = ungroup_queries(mixed, heads).squeeze(1)
        lse = ungroup_queries(lse.unsqueeze(-1), heads).flatten(1)
        return add_sinks(mixed, lse, scoring.sinks).to(query.dtype)
