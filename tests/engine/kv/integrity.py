"""Asserts that a KV pool has leaked no block, and that no request can write into a shared one."""

from collections import Counter
from itertools import chain

import numpy as np

from engine.kv.blocks import BlockPool, chain_digests
from engine.kv.cache import KVCache


def check(cache: KVCache) -> None:
    users: Counter[int] = Counter()
    pool = cache._pool
    for request, entry in cache._entries.items():
        assert len(entry.blocks) == cache._blocks_for(entry.rows), f"{request}: wrong block count"
        room = len(entry.blocks) * cache.block_size
        assert np.array_equal(entry.slots[:room], cache._slots_in(entry.blocks)), request
        root = entry.scope.digest
        assert entry.digests == chain_digests(entry.tokens, cache.block_size, root), request
        users.update(entry.blocks)
        for block, digest in zip(entry.blocks, entry.digests, strict=False):
            assert pool._digests[block] in (None, digest), f"{request}: wrong digest"
        for block in set(entry.blocks[len(entry.tokens) // cache.block_size :]):
            writable = not pool.is_shared(block) and pool._digests[block] is None
            assert writable or entry.tail == 0, f"{request}: writes a shared block"
    _check_blocks(pool, dict(users))


def _check_blocks(pool: BlockPool, users: dict[int, int]) -> None:
    free, cached = set(pool._free), set(chain(*pool._cached.values()))
    assert len(free) == pool.free, "a block is free twice"
    assert {block: n for block, n in enumerate(pool._users) if n} == users, "wrong user count"
    assert free.isdisjoint(cached), "a block is both free and cached"
    assert users.keys().isdisjoint(free | cached), "a block is used, yet free or cached"
    assert len(users) + len(free) + len(cached) == len(pool), "free + used + cached ≠ total"
    published = {digest: block for block, digest in enumerate(pool._digests) if digest}
    assert published == pool._published, "prefix cache and blocks disagree"
    assert cached <= set(published.values()), "a cached block is not published"
    assert free.isdisjoint(published.values()), "a free block is published"
    owners = Counter(owner for block, owner in enumerate(pool._owners) if block not in free)
    assert owners == pool._holdings.held, "a tenant holds other blocks than it is charged for"
