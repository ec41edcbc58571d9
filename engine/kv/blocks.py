"""Bookkeeping of a KV pool's blocks: reference counts, free list and prefix cache.

Nothing here touches the rows themselves. A block is free, used (by one or more requests) or cached:
full, published under the digest of its prefix, without users, and kept for the next request with
that prefix until its memory is needed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from engine.errors import OutOfBlocks
from engine.scopes import Holdings

Digest = bytes
"""Identifies a full block by its tokens and all tokens before them."""


def block_digest(parent: Digest, tokens: Sequence[int]) -> Digest:
    """A cryptographic hash, so that no request can reach another one's KV by a collision."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=32).digest()


def chain_digests(tokens: Sequence[int], block_size: int, parent: Digest) -> list[Digest]:
    """The digests of all full blocks of `tokens`, each chained to the one before it, and the first
    to `parent`: a scope's digest, so that scopes share no block."""
    digests: list[Digest] = []
    for end in range(block_size, len(tokens) + 1, block_size):
        parent = block_digest(parent, tokens[end - block_size : end])
        digests.append(parent)
    return digests


@dataclass(frozen=True, slots=True)
class KvState:
    """Blocks of the verifier's KV pool: free + used + cached = total, or KV has been lost."""

    free: int
    used: int
    """Held by requests."""
    cached: int
    """Held by no request, kept for prompts with the same beginning."""
    total: int


class BlockPool:
    """Reference counts, free list and prefix cache of a fixed number of blocks."""

    def __init__(self, blocks: int, clock: Callable[[], float]) -> None:
        self._free = list(range(blocks))
        self._users = [0] * blocks
        self._owners = [""] * blocks
        """The tenant of each block that is not free."""
        self._digests: list[Digest | None] = [None] * blocks
        self._published: dict[Digest, int] = {}
        self._cached: dict[str, OrderedDict[int, None]] = {}
        """By tenant, without tenants that have none; the least recently used first."""
        self._holdings = Holdings(clock)
        """Used and cached blocks."""

    def __len__(self) -> int:
        return len(self._users)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return sum(map(len, self._cached.values()))

    @property
    def used(self) -> int:
        return len(self) - self.free - self.cached

    def allocate(self, count: int, tenant: str) -> list[int]:
        """Blocks for the caller alone: free ones first, then the least recently used cached ones
        of the tenant that holds most.

        Raises OutOfBlocks, and allocates none, if there are fewer than `count`.
        """
        available = self.free + self.cached
        if count > available:
            raise OutOfBlocks(needed=count, available=available)
        self._holdings.add(tenant, count)
        while self.free < count:
            self._evict()
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._users[block], self._owners[block] = 1, tenant
        return blocks

    def share_prefix(self, digests: Sequence[Digest]) -> list[int]:
        """Adds a user to the published blocks of the longest known prefix of `digests`."""
        blocks: list[int] = []
        for digest in digests:
            block = self._published.get(digest)
            if block is None:
                break
            if not self._users[block]:
                self._leave_cache(block)
            self._users[block] += 1
            blocks.append(block)
        if blocks:
            self._holdings.use(self._owners[blocks[0]])
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Removes one user of each block. `blocks` are in the order of their prefix."""
        # Last first: a prefix is found from its first block, so its last one must be evicted first.
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if self._digests[block] is None:
                self._set_free(block)
            else:
                self._cached.setdefault(self._owners[block], OrderedDict())[block] = None

    def publish(self, block: int, digest: Digest) -> None:
        """Enters a full block into the prefix cache; of equal blocks only the first is entered."""
        if self._published.setdefault(digest, block) == block:
            self._digests[block] = digest

    def withdraw(self, block: int) -> None:
        """Removes a block from the prefix cache, as its rows are about to change."""
        digest = self._digests[block]
        if digest is not None:
            self._digests[block] = None
            del self._published[digest]

    def is_shared(self, block: int) -> bool:
        return self._users[block] > 1

    def _evict(self) -> None:
        block = next(iter(self._cached[self._holdings.gives_room(self._cached)]))
        self._leave_cache(block)
        self.withdraw(block)
        self._set_free(block)

    def _leave_cache(self, block: int) -> None:
        owner = self._owners[block]
        blocks = self._cached[owner]
        del blocks[block]
        if not blocks:
            del self._cached[owner]

    def _set_free(self, block: int) -> None:
        self._free.append(block)
        self._holdings.add(self._owners[block], -1)
