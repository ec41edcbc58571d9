"""Shares vLLM's prefix cache fairly among tenants.

vLLM reuses the memory of cached blocks in one order for all, the least recently used first, so that
one tenant's flood of prompts would evict everybody's. Here the tenant that has most of them cached
gives room. It costs nothing while only one tenant has any.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from time import monotonic

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from engine.scopes import Holdings


class FairCache:
    """Chooses which cached blocks without users a pool reuses next."""

    def __init__(self, pool: BlockPool, clock: Callable[[], float] = monotonic) -> None:
        self._queue = pool.free_block_queue
        self._blocks = pool.blocks
        self._owners: dict[int, str] = {}
        """The tenant of each cached block without users, by the block's id."""
        self._cached: dict[str, OrderedDict[int, None]] = {}
        """By tenant, without tenants that have none; the least recently used first."""
        self._holdings = Holdings(clock)
        self._take, self._touch = pool.get_new_blocks, pool.touch
        # Every block that leaves the free queue does so in one of these two.
        pool.get_new_blocks, pool.touch = self._get_new_blocks, self._touch_blocks

    def released(self, tenant: str, blocks: Sequence[int]) -> None:
        """A request of this tenant has left these blocks, in the order of its tokens."""
        for number in reversed(blocks):
            block = self._blocks[number]
            if block.ref_cnt == 0 and block.block_hash is not None and number not in self._owners:
                self._owners[number] = tenant
                self._cached.setdefault(tenant, OrderedDict())[number] = None
                self._holdings.add(tenant, 1)

    def _get_new_blocks(self, count: int) -> list[KVCacheBlock]:
        if len(self._cached) > 1:
            self._bring_forward(count - self._uncached(count))
        blocks: list[KVCacheBlock] = self._take(count)
        self._forget(blocks)
        return blocks

    def _touch_blocks(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._forget(blocks)
        self._touch(blocks)

    def _uncached(self, most: int) -> int:
        """How many blocks without content are first in the queue."""
        block, count = self._queue.fake_free_list_head.next_free_block, 0
        while count < most and block.block_hash is None and block.next_free_block is not None:
            block, count = block.next_free_block, count + 1
        return count

    def _bring_forward(self, count: int) -> None:
        chosen: list[KVCacheBlock] = []
        while len(chosen) < count and self._cached:
            number = next(iter(self._cached[self._holdings.gives_room(self._cached)]))
            chosen.append(self._blocks[number])
            self._forget(chosen[-1:])
        for block in chosen:
            self._queue.remove(block)
        self._queue.prepend_n(chosen)

    def _forget(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            tenant = self._owners.pop(block.block_id, None)
            if tenant is not None:
                self._holdings.add(tenant, -1)
                self._cached[tenant].pop(block.block_id)
                if not self._cached[tenant]:
                    del self._cached[tenant]
