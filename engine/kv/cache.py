"""The KV cache of one model: a bounded pool of blocks that requests hold, share and release.

A request has committed rows, one for each committed token that went through the model, followed by
tail rows, which a forward computed and no verdict has confirmed yet. A verdict keeps some tail rows
and drops the rest; a rollback only changes a length.

Not thread-safe: a pool belongs to the thread that runs its model.
"""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kv.blocks import BlockPool, Digest, block_digest, chain_digests
from engine.scopes import SHARED, Scope


@dataclass(frozen=True, slots=True)
class KVShape:
    """The shape of one row in the cache of one model."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True)
class _Entry:
    """One request. `blocks` are exactly those that its committed and tail rows need."""

    tokens: list[int]
    """The tokens of the committed rows."""
    digests: list[Digest]
    """The digests of the full blocks of committed rows."""
    scope: Scope
    tail: int = 0
    """The number of tail rows."""
    blocks: list[int] = field(default_factory=list)
    slots: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The slots of all rows in `blocks`, then unused entries to grow into."""

    @property
    def rows(self) -> int:
        return len(self.tokens) + self.tail


class KVCache:
    """Rows are addressed by slot: a request's row i is `k[layer][slots(request)[i]]`."""

    def __init__(self, shape: KVShape, blocks: int, block_size: int = 16) -> None:
        self.shape = shape
        self.block_size = block_size
        self._pool = BlockPool(blocks, monotonic)
        self._storage = _allocate(shape, blocks * block_size)
        self.pool = self._storage.unflatten(-1, (shape.kv_heads, shape.head_dim))
        """[2 · layers, slots, kv_heads, head_dim], keys and values of a layer side by side."""
        self.k: list[Tensor] = list(self.pool[0::2])
        """Per layer: [slots, kv_heads, head_dim]."""
        self.v: list[Tensor] = list(self.pool[1::2])
        self._entries: dict[str, _Entry] = {}

    @property
    def capacity(self) -> int:
        """The rows that a request alone in the pool may have."""
        return len(self._pool) * self.block_size

    @property
    def free_blocks(self) -> int:
        return self._pool.free

    @property
    def cached_blocks(self) -> int:
        """Blocks without users, kept for their prefix until their memory is needed."""
        return self._pool.cached

    @property
    def used_blocks(self) -> int:
        return self._pool.used

    def __contains__(self, request: str) -> bool:
        return request in self._entries

    def length(self, request: str) -> int:
        """The number of committed rows."""
        return len(self._entries[request].tokens)

    def tail(self, request: str) -> int:
        """The number of tail rows."""
        return self._entries[request].tail

    def slots(self, request: str) -> NDArray[np.int64]:
        """The slots of all committed and tail rows, a view valid until the next change."""
        entry = self._entries[request]
        return entry.slots[: entry.rows]

    def open(self, request: str, tokens: Sequence[int], scope: Scope = SHARED) -> int:
        """Adds a request. Returns how many rows of `tokens` it shares from its scope's part of the
        prefix cache.

        At least one token is always left to compute, as its logits choose the next token.
        """
        if request in self._entries:
            raise ValueError(f"request {request!r} is open already")
        digests = chain_digests(tokens[:-1], self.block_size, scope.digest)
        blocks = self._pool.share_prefix(digests)
        shared = len(blocks) * self.block_size
        entry = _Entry(list(tokens[:shared]), digests[: len(blocks)], scope)
        self._append(entry, blocks)
        self._entries[request] = entry
        return shared

    def reserve(self, request: str, rows: int) -> NDArray[np.int64]:
        """Adds `rows` tail rows, which the caller writes; returns their slots, a view as `slots`.

        Raises OutOfBlocks and changes nothing when neither free nor cached blocks are left.
        """
        entry = self._entries[request]
        if rows < 0:
            raise ValueError(f"{rows} rows to reserve")
        first = entry.rows
        end = first + rows
        # A truncated request may end inside a shared block: it writes into a copy.
        writes_block = rows > 0 and first % self.block_size > 0
        copies = writes_block and self._pool.is_shared(entry.blocks[-1])
        missing = self._blocks_for(end) - len(entry.blocks)
        if missing or copies:
            fresh = self._pool.allocate(missing + copies, entry.scope.tenant)
            if copies:
                self._replace_last(entry, fresh.pop())
            self._append(entry, fresh)
        if writes_block:
            self._pool.withdraw(entry.blocks[first // self.block_size])
        entry.tail += rows
        return entry.slots[first:end]

    def unreserve(self, request: str, rows: int) -> None:
        """Removes the last `rows` tail rows, as when the pool had no room for another request."""
        entry = self._entries[request]
        if not 0 <= rows <= entry.tail:
            raise ValueError(f"{rows} rows to take back from a tail of {entry.tail}")
        entry.tail -= rows
        self._trim(entry)

    def commit(self, request: str, keep: Sequence[int], tokens: Sequence[int]) -> None:
        """Tail rows `keep` (ascending indices into the tail) become the rows of `tokens`.

        They are moved right after the committed rows, and the rest of the tail is dropped.
        """
        entry = self._entries[request]
        count = len(keep)
        if count != len(tokens):
            raise ValueError(f"{count} rows to keep for {len(tokens)} tokens")
        if count:
            if keep[0] < 0 or keep[-1] >= entry.tail or list(keep) != sorted(set(keep)):
                raise ValueError(f"rows {keep} are not ascending in a tail of {entry.tail}")
            if keep[-1] >= count:  # otherwise, as they ascend, they are in place already
                self._move(entry, len(entry.tokens), keep)
            entry.tokens.extend(tokens)
            self._publish_full(entry)
        entry.tail = 0
        self._trim(entry)

    def truncate(self, request: str, length: int) -> None:
        """Drops the committed rows from `length` on, and the tail."""
        entry = self._entries[request]
        if not 0 <= length <= len(entry.tokens):
            raise ValueError(f"cannot truncate {len(entry.tokens)} rows to {length}")
        entry.tail = 0
        del entry.tokens[length:]
        del entry.digests[length // self.block_size :]
        self._trim(entry)

    def release(self, request: str) -> None:
        """Removes a request; its full blocks stay cached. Unknown requests are no error."""
        entry = self._entries.pop(request, None)
        if entry is not None:
            self._pool.release(entry.blocks)

    def _blocks_for(self, rows: int) -> int:
        return -(-rows // self.block_size)

    def _slots_in(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        firsts = np.array(blocks, np.int64)[:, None] * self.block_size
        return (firsts + np.arange(self.block_size)).ravel()

    def _append(self, entry: _Entry, blocks: Sequence[int]) -> None:
        """Appends `blocks` to the entry's blocks."""
        start = len(entry.blocks) * self.block_size
        end = start + len(blocks) * self.block_size
        if end > len(entry.slots):
            grown = np.empty(max(end, 2 * len(entry.slots)), np.int64)
            grown[:start] = entry.slots[:start]
            entry.slots = grown
        entry.slots[start:end] = self._slots_in(blocks)
        entry.blocks.extend(blocks)

    def _trim(self, entry: _Entry) -> None:
        """Releases the blocks after the entry's last row."""
        needed = self._blocks_for(entry.rows)
        if needed < len(entry.blocks):
            self._pool.release(entry.blocks[needed:])
            del entry.blocks[needed:]

    def _replace_last(self, entry: _Entry, block: int) -> None:
        """Copies the entry's last, shared block to `block` (copy on write)."""
        shared = entry.blocks.pop()
        self._append(entry, [block])
        self._copy(self._slots_in([shared]), self._slots_in([block]))
        self._pool.release([shared])

    def _move(self, entry: _Entry, start: int, keep: Sequence[int]) -> None:
        source = entry.slots[start + np.array(keep, np.int64)]
        self._copy(source, entry.slots[start : start + len(keep)])

    def _copy(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """All source slots are read before any target is written, so they may overlap."""
        device = self.shape.device
        rows = self._storage.index_select(1, torch.from_numpy(source).to(device))
        self._storage.index_copy_(1, torch.from_numpy(target).to(device), rows)

    def _publish_full(self, entry: _Entry) -> None:
        """Enters blocks that are now full of committed rows into the prefix cache."""
        size = self.block_size
        for index in range(len(entry.digests), len(entry.tokens) // size):
            parent = entry.digests[-1] if entry.digests else entry.scope.digest
            digest = block_digest(parent, entry.tokens[index * size : (index + 1) * size])
            entry.digests.append(digest)
            self._pool.publish(entry.blocks[index], digest)


def _allocate(shape: KVShape, slots: int) -> Tensor:
    """[2 · layers, slots, kv_heads · head_dim], keys and values of a layer side by side.

    One tensor, so that one index copy moves a row in all layers. Zeros, as a layout may read a row
    that is masked by a weight of 0, and 0 · NaN is NaN.
    """
    sizes = 2 * shape.layers, slots, shape.kv_heads * shape.head_dim
    if shape.device.type != "cpu" or not slots:
        return torch.zeros(sizes, dtype=shape.dtype, device=shape.device)
    # Pages of a mapping take memory when they are first written.
    memory = mmap.mmap(-1, math.prod(sizes) * shape.dtype.itemsize, flags=mmap.MAP_PRIVATE)
    return torch.frombuffer(memory, dtype=shape.dtype).view(sizes)
