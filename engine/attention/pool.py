"""The attention of one forward over a KV pool."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.context import AttentionPlan
from engine.attention.hook import LayerCall
from engine.kv.cache import KVCache


class PoolAttention(NamedTuple):
    """A handler of attention: writes a layer's new keys and values into the pool, then attends."""

    kv: KVCache
    plan: AttentionPlan
    slots: NDArray[np.int64]
    """Of the new rows."""
    slot_index: Tensor
    """The same on the pool's device."""

    def __call__(self, call: LayerCall) -> Tensor:
        keys, values = self.kv.k[call.layer], self.kv.v[call.layer]
        keys.index_copy_(0, self.slot_index, call.keys)
        values.index_copy_(0, self.slot_index, call.values)
        return self.plan.attend(call.query, keys, values, call.scoring)
