"""vLLM's prefix cache evicts the blocks of the tenant that has most of them, on vLLM's own pool."""

import pytest

pytest.importorskip("vllm")

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id

from engine.scopes import IDLE_S
from engine.verifiers.vllm.adapter.fair_cache import FairCache

BLOCKS = 11
"""Ten, as vLLM keeps the first."""


class Cache:
    def __init__(self) -> None:
        self.now = 0.0
        self.pool = BlockPool(BLOCKS, enable_caching=True, hash_block_size=16)
        self.fair = FairCache(self.pool, clock=lambda: self.now)
        self._written = 0

    def serve(self, tenant: str, count: int) -> list[int]:
        """A request that fills so many blocks, all of which are cached, and leaves; their ids."""
        blocks = self.pool.get_new_blocks(count)
        for block in blocks:
            self._written += 1
            digest = make_block_hash_with_group_id(BlockHash(str(self._written).encode()), 0)
            self.pool._insert_block_hash(digest, block, 16)
        numbers = [block.block_id for block in blocks]
        self.leave(tenant, numbers)
        return numbers

    def leave(self, tenant: str, numbers: list[int]) -> None:
        self.pool.free_blocks([self.pool.blocks[number] for number in reversed(numbers)])
        self.fair.released(tenant, numbers)

    def cached(self, numbers: list[int]) -> int:
        return sum(self.pool.blocks[number].block_hash is not None for number in numbers)


def test_a_flood_evicts_its_own_blocks() -> None:
    cache = Cache()
    quiet = cache.serve("quiet", 4)
    for _ in range(20):
        flood = cache.serve("loud", 3)
    assert quiet == sorted(quiet)
    assert cache.cached(quiet) == 4
    assert cache.cached(flood) == 3
    assert cache.pool.get_num_free_blocks() == BLOCKS - 1


def test_an_idle_tenant_gives_its_room_back() -> None:
    cache = Cache()
    quiet = cache.serve("quiet", 4)
    cache.now = IDLE_S + 1
    loud = cache.serve("loud", 6) + cache.serve("loud", 4)
    assert cache.cached(loud) == 10
    assert set(quiet) <= set(loud)


def test_blocks_that_are_used_again_are_nobodys_to_evict() -> None:
    cache = Cache()
    held, other = cache.serve("large", 6), cache.serve("small", 4)
    cache.pool.touch([cache.pool.blocks[number] for number in held])
    assert set(cache.serve("small", 3)) <= set(other)
    assert cache.cached(held) == 6
    cache.leave("large", held)
    assert not set(cache.serve("small", 2)) & set(other), "the larger tenant gives room again"


def test_blocks_without_content_are_taken_first() -> None:
    cache = Cache()
    one, other = cache.serve("one", 3), cache.serve("other", 3)
    cache.serve("third", 4)
    assert cache.cached(one + other) == 6
