"""The KV cache keeps every row's value under any sequence of operations, and leaks no block.

As in a model, a row's value depends on its token and all tokens before it, so a row that was lost,
moved wrongly or overwritten by another request is detected.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from engine.errors import OutOfBlocks
from engine.kv.cache import KVCache, KVShape
from engine.scopes import SHARED, Scope
from tests.engine.kv.integrity import check

LAYERS, KV_HEADS, HEAD_DIM = 2, 1, 2
SHAPE = KVShape(LAYERS, KV_HEADS, HEAD_DIM, torch.float32, torch.device("cpu"))
# A row holds its value (below 2¹⁶) plus an offset by layer, head and dimension, exact in fp32.
OFFSETS = (
    np.arange(2 * LAYERS * KV_HEADS * HEAD_DIM).reshape(2 * LAYERS, 1, KV_HEADS, HEAD_DIM) / 16
)


def make_cache(blocks: int = 8, block_size: int = 4) -> KVCache:
    return KVCache(SHAPE, blocks, block_size)


def row_values(tokens: Sequence[int]) -> list[int]:
    """One value per token, a hash of the token and all tokens before it."""
    values, value = [], 0
    for token in tokens:
        value = (value * 31 + token + 1) % 65_521
        values.append(value)
    return values


def write(cache: KVCache, slots: NDArray[np.int64], values: Sequence[int]) -> None:
    rows = np.array(values).reshape(1, -1, 1, 1) + OFFSETS
    for layer in range(LAYERS):
        cache.k[layer].numpy()[slots] = rows[2 * layer]
        cache.v[layer].numpy()[slots] = rows[2 * layer + 1]


def assert_holds(cache: KVCache, request: str, values: Sequence[int]) -> None:
    """Committed and tail rows, in all layers."""
    slots = cache.slots(request)
    expected = np.array(values).reshape(1, -1, 1, 1) + OFFSETS
    for layer in range(LAYERS):
        np.testing.assert_array_equal(cache.k[layer].numpy()[slots], expected[2 * layer])
        np.testing.assert_array_equal(cache.v[layer].numpy()[slots], expected[2 * layer + 1])


def fill(cache: KVCache, request: str, tokens: Sequence[int], scope: Scope = SHARED) -> int:
    """Opens a request and computes the rows that are not shared; returns how many are."""
    shared = cache.open(request, tokens, scope)
    add(cache, request, tokens[:shared], tokens[shared:])
    return shared


def add(cache: KVCache, request: str, before: Sequence[int], tokens: Sequence[int]) -> None:
    values = row_values([*before, *tokens])[len(before) :]
    write(cache, cache.reserve(request, len(tokens)), values)
    cache.commit(request, range(len(tokens)), tokens)


@dataclass
class Expected:
    """The expected content of a request's entry."""

    tokens: list[int]
    scope: Scope
    tail: list[list[int]] = field(default_factory=list)
    """For each tail row the uncommitted tokens up to it: the path of a draft tree's node."""

    @property
    def rows(self) -> int:
        return len(self.tokens) + len(self.tail)

    @property
    def values(self) -> list[int]:
        committed = row_values(self.tokens)
        return committed + [row_values(self.tokens + path)[-1] for path in self.tail]


BLOCKS, BLOCK_SIZE = 12, 3
NAMES = ("a", "b", "c", "d")
SCOPES = (SHARED, Scope("tenant"), Scope("tenant", "salt"))
# Two tokens only, so that requests share prefixes, diverge within blocks and return to old ones.
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=8)
PICK = st.integers(0, 11)
"""An index, modulo the number of choices."""
NODES = st.lists(st.tuples(PICK, st.integers(0, 1)), max_size=6)
"""(parent, token) of each."""
any_is_open = precondition(lambda pool: pool.expected)


def blocks_for(rows: int) -> int:
    return -(-rows // BLOCK_SIZE)


class Pool(RuleBasedStateMachine):
    """Requests that are opened, draft trees, commit paths, roll back and are released."""

    @initialize(tokens=TOKENS)
    def start(self, tokens: list[int]) -> None:
        self.cache = make_cache(BLOCKS, BLOCK_SIZE)
        self.expected: dict[str, Expected] = {}
        self.open(0, tokens, SHARED)

    def one(self, pick: int) -> tuple[str, Expected]:
        return list(self.expected.items())[pick % len(self.expected)]

    @precondition(lambda pool: len(pool.expected) < len(NAMES))
    @rule(pick=PICK, tokens=TOKENS, scope=st.sampled_from(SCOPES))
    def open(self, pick: int, tokens: list[int], scope: Scope) -> None:
        """A new prompt, or one that continues another request's tokens, computed at once."""
        known = [[], *(one.tokens for one in self.expected.values())]
        prompt = known[pick % len(known)] + tokens
        request = next(name for name in NAMES if name not in self.expected)
        shared = self.cache.open(request, prompt, scope)
        assert shared % BLOCK_SIZE == 0
        assert shared < len(prompt)
        self.expected[request] = Expected(prompt[:shared], scope)
        self.compute(request, prompt[shared:])

    @any_is_open
    @rule(pick=PICK, rows=NODES)
    def draft(self, pick: int, rows: list[tuple[int, int]]) -> None:
        """Adds nodes below the committed tokens or any node of an earlier forward."""
        request, one = self.one(pick)
        paths: list[list[int]] = [[], *one.tail]
        old = len(paths)
        for parent, token in rows:
            paths.append([*paths[parent % len(paths)], token])
        self.reserve(request, paths[old:])

    @any_is_open
    @rule(pick=PICK, rows=NODES, node=PICK)
    def round(self, pick: int, rows: list[tuple[int, int]], node: int) -> None:
        """A verdict that accepts the path to one drafted node, or none."""
        self.draft(pick, rows)
        request, one = self.one(pick)
        path = [*one.tail, []][node % (len(one.tail) + 1)]
        # A path may be in the tail twice; any of its rows will do.
        self.commit(request, [one.tail.index(path[: depth + 1]) for depth in range(len(path))])

    @any_is_open
    @rule(pick=PICK, rows=PICK)
    def unreserve(self, pick: int, rows: int) -> None:
        request, one = self.one(pick)
        kept = len(one.tail) - rows % (len(one.tail) + 1)
        self.cache.unreserve(request, len(one.tail) - kept)
        del one.tail[kept:]

    @any_is_open
    @rule(pick=PICK, dropped=st.integers(0, 6), tokens=st.just([]) | TOKENS)
    def rewrite(self, pick: int, dropped: int, tokens: list[int]) -> None:
        """Replaces the last committed tokens."""
        request, one = self.one(pick)
        length = max(0, len(one.tokens) - dropped)
        self.cache.truncate(request, length)
        del one.tokens[length:]
        one.tail = []
        self.compute(request, tokens)

    @any_is_open
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        request, _ = self.one(pick)
        self.cache.release(request)
        del self.expected[request]

    @invariant()
    def no_block_is_in_two_scopes(self) -> None:
        owners: dict[int, Scope] = {}
        for name in self.expected:
            scope = self.expected[name].scope
            for block in self.cache.slots(name)[::BLOCK_SIZE].tolist():
                assert owners.setdefault(block, scope) == scope

    @invariant()
    def every_row_has_its_value(self) -> None:
        check(self.cache)
        for request, one in self.expected.items():
            assert self.cache.length(request) == len(one.tokens)
            assert self.cache.tail(request) == len(one.tail)
            assert_holds(self.cache, request, one.values)

    def teardown(self) -> None:
        """After all requests are released, no block is used."""
        for request in NAMES:
            self.cache.release(request)
        check(self.cache)
        assert self.cache.used_blocks == 0

    def compute(self, request: str, chunk: list[int]) -> None:
        """Commits tokens if the pool has room."""
        if self.reserve(request, [chunk[: end + 1] for end in range(len(chunk))]):
            self.commit(request, range(len(chunk)))

    def reserve(self, request: str, paths: list[list[int]]) -> bool:
        """Whether there was room; if so, writes the rows as a forward would."""
        one = self.expected[request]
        needed = blocks_for(one.rows + len(paths)) - blocks_for(one.rows)
        if paths and one.rows % BLOCK_SIZE:
            needed += self.shares_last_block(request)
        if needed > BLOCKS - self.cache.used_blocks:
            with pytest.raises(OutOfBlocks):
                self.cache.reserve(request, len(paths))
            return False
        slots = self.cache.reserve(request, len(paths))
        write(self.cache, slots, [row_values(one.tokens + path)[-1] for path in paths])
        one.tail += paths
        return True

    def shares_last_block(self, request: str) -> bool:
        last = self.cache.slots(request)[-1] // BLOCK_SIZE
        others = [name for name in self.expected if name != request]
        return any(last in self.cache.slots(name) // BLOCK_SIZE for name in others)

    def commit(self, request: str, keep: Sequence[int]) -> None:
        one = self.expected[request]
        tokens = one.tail[keep[-1]] if keep else []
        self.cache.commit(request, keep, tokens)
        one.tokens += tokens
        one.tail = []


TestPool = Pool.TestCase
TestPool.settings = settings(
    max_examples=300, stateful_step_count=30, deadline=None, derandomize=True, database=None
)


def test_capacity_is_the_most_rows_that_one_request_may_have() -> None:
    """Admission refuses longer requests, which no eviction could make room for."""
    cache = make_cache(blocks=4)
    fill(cache, "before", range(13))
    cache.release("before")
    cache.open("alone", [])
    with pytest.raises(OutOfBlocks, match="5 KV blocks needed, 4 available"):
        cache.reserve("alone", cache.capacity + 1)
    assert len(cache.reserve("alone", cache.capacity)) == 16


def test_prompts_share_the_full_blocks_of_a_common_prefix() -> None:
    cache = make_cache(blocks=16)
    first = list(range(11))
    fill(cache, "first", first)
    assert fill(cache, "same", first) == 8
    assert cache.slots("same")[:8].tolist() == cache.slots("first")[:8].tolist()
    assert fill(cache, "differs late", [*first[:7], 50, 8]) == 4
    assert fill(cache, "differs at once", [50, *first[1:]]) == 0
    assert fill(cache, "shifted", first[4:]) == 0, "a block was shared after another prefix"
    for request, prompt in (("same", first), ("differs late", [*first[:7], 50, 8])):
        assert_holds(cache, request, row_values(prompt))
    # Each request uses new blocks only for what it does not share with earlier ones.
    assert cache.used_blocks == 3 + 1 + 2 + 3 + 2


def test_a_prefix_stays_cached_until_its_memory_is_needed() -> None:
    cache = make_cache(blocks=4)
    prompt = list(range(9))
    fill(cache, "a", prompt)
    cache.release("a")
    assert (cache.free_blocks, cache.cached_blocks, cache.used_blocks) == (2, 2, 0)
    assert cache.open("b", prompt) == 8
    cache.release("b")
    fill(cache, "three blocks", range(20, 32))  # evicts the prefix's last block
    assert cache.open("c", prompt) == 4
    assert_holds(cache, "c", row_values(prompt[:4]))
    check(cache)


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    cache = make_cache(blocks=3)
    old, new = [1, 1, 1, 1, 1], [2, 2, 2, 2, 2]
    for prompt in (old, new, old):  # the last one shares the first one's block
        fill(cache, "x", prompt)
        cache.release("x")
    fill(cache, "two blocks", [3] * 5)
    assert cache.open("new", new) == 0
    assert cache.open("old", old) == 4


def prompt_of(number: int) -> list[int]:
    """Two blocks and one token, which no other number shares."""
    return [number] * 9


def test_a_salt_that_spells_tokens_reaches_no_block_after_them() -> None:
    """Its digest would be that of the block of these tokens, and rows of other positions shared."""
    cache = make_cache(blocks=16)
    first, second = [0, *range(65, 68)], [5, 6, 7, 8]
    salt = array("q", first[1:]).tobytes().decode()
    assert fill(cache, "plain", [*first, *second, 9]) == 0
    assert fill(cache, "salted", [*second, 9], Scope("", salt)) == 0
    check(cache)


def test_a_tenant_that_floods_the_cache_evicts_its_own_prompts() -> None:
    cache = make_cache(blocks=12)
    fill(cache, "quiet", prompt_of(0), Scope("quiet"))
    cache.release("quiet")
    for number in range(1, 50):  # under ever new salts
        fill(cache, "flood", prompt_of(number), Scope("loud", str(number)))
        cache.release("flood")
    assert cache.open("quiet again", prompt_of(0), Scope("quiet")) == 8
    assert cache.open("flood again", prompt_of(49), Scope("loud", "49")) == 8
    check(cache)
