"""The attention of one forward over a KV pool."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.context import AttentionPlan
from engine.attention.hook import LayerCall
from engine.attention.packed import PackedPlan
from engine.attention.walk import WalkArrays
from engine.kv.cache import KVCache


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
