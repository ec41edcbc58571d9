"""A compiled attention kernel, which reads KV rows in place.

Everything is computed in fp32, whatever the pool's dtype. Requests are cut into blocks of few new
rows. For a block each row of the pool is read once, for all of its rows and query heads that share
a key head. A result's bits depend on the tokens before it alone: neither other requests nor other
branches of a draft tree nor the blocks nor the number of threads change a bit of a sum.
"""

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from engine.attention.context import Numbers, WalkArrays
from engine.attention.vector_ir import LANES
from engine.attention.vectors import (
    exact_sum,
    fma,
    largest,
    load,
    maximum,
    prefetch,
    spread,
    store,
    store_sums,
    zeros,
)
from engine.cpu.fast_math import fast_exp

MASKED = np.float32(-1e30)
"""Below every score; not -inf, of which differences are no numbers."""
NEGLIGIBLE = np.float32(-60.0)
"""Weights below exp(NEGLIGIBLE) of the largest are set to zero. They are far too small to change an
fp32 sum, and products with them would be denormal, which takes processors 100 times as long."""
TOGETHER_LINES = 12
"""Up to this number of lines, all key heads of a block are computed together."""
SLOTS_PER_STEP = 4
"""Slots processed together, so that a query or a sum in registers is used for four of them."""
PREFETCH_DISTANCE = 16
"""How many slots ahead of the computation memory is prefetched."""
CACHE_LINE_BYTES = 64
CACHE_LINE = CACHE_LINE_BYTES // 4
"""In fp32 numbers."""

Floats = NDArray[np.float32]
Slots = NDArray[np.int64]


@njit(cache=True, nogil=True, parallel=True)
def walk_parallel(
    done: NDArray[np.bool_],
    arrays: WalkArrays,
    query: Numbers,
    keys: Numbers,
    values: Numbers,
    scale: float,
    window: int,
    mixed: Numbers,
) -> None:
    """`walk_part` on `len(done)` threads, whose errors numba does not raise."""
    for part in prange(len(done)):
        done[part] = _walked(part, len(done), arrays, query, keys, values, scale, window, mixed)


@njit(cache=True, nogil=True)
def _walked(
    part: int,
    parts: int,
    arrays: WalkArrays,
    query: Numbers,
    keys: Numbers,
    values: Numbers,
    scale: float,
    window: int,
    mixed: Numbers,
) -> bool:
    """`walk_part`. False: it has found no memory."""
    try:
        walk_part(part, parts, arrays, query, keys, values, scale, window, mixed)
    except Exception:
        return False
    return True


@njit(cache=True, nogil=True)
def walk_part(
    part: int,
    parts: int,
    arrays: WalkArrays,
    query: Numbers,
    keys: Numbers,
    values: Numbers,
    scale: float,
    window: int,
    mixed: Numbers,
) -> None:
    """One of `parts` parts of equal work: whole blocks; one on a boundary is split by key heads.

    query and mixed [rows, heads, d]; keys and values [slots, kv_heads, d]: all of one dtype, but
    for float16 keys and values of fp32 queries."""
    kv_heads, group = keys.shape[1], query.shape[1] // keys.shape[1]
    total, most_lines, most_slots = 0, 0, 0
    for block in range(len(arrays.row_counts)):
        rows, slots = arrays.row_counts[block], arrays.kv_counts[block]
        total += rows * slots
        most_lines, most_slots = max(most_lines, rows * group), max(most_slots, slots)
    start, end = part * total // parts, (part + 1) * total // parts
    scratch = _aligned_scratch(kv_heads * _scratch_size(most_lines, most_slots, query.shape[2]))
    done = 0
    for block in range(len(arrays.row_counts)):
        rows, slots = arrays.row_counts[block], arrays.kv_counts[block]
        first_head = _heads_before(start - done, rows * slots, kv_heads)
        end_head = _heads_before(end - done, rows * slots, kv_heads)
        # Few lines are limited by memory, of which long runs are read fastest; of many, those of
        # one head stay in the nearest cache.
        step = end_head - first_head if rows * group <= TOGETHER_LINES else 1
        for head in range(first_head, end_head, max(step, 1)):
            _attend_heads(
                arrays, block, head, head + step,
                query, keys, values, scale, window, scratch, mixed,
            )  # fmt: skip
        done += rows * slots


@njit(cache=True, nogil=True)
def _heads_before(work: int, block_work: int, heads: int) -> int:
    """How many of a block's key heads start within its first `work` of `block_work`."""
    return min(max(-(-work * heads // block_work), 0), heads)


@njit(cache=True, nogil=True)
def _scratch_size(lines: int, slots: int, width: int) -> int:
    """Numbers per key head for queries, sums and scores."""
    return _even_lines(lines) * (2 * _whole_vectors(width) + _whole_vectors(slots))


@njit(cache=True, nogil=True)
def _even_lines(lines: int) -> int:
    """Rounded up to pairs, in which lines are scored."""
    return lines + lines % 2


@njit(cache=True, nogil=True)
def _whole_vectors(numbers: int) -> int:
    """Rounded up to whole vectors."""
    return (numbers + LANES - 1) // LANES * LANES


@njit(cache=True, nogil=True)
def _aligned_scratch(count: int) -> Floats:
    """Aligned, as vectors that straddle two cache lines take twice as long to read."""
    memory = np.empty(count + CACHE_LINE, np.float32)
    first = -(memory.ctypes.data // memory.itemsize) % CACHE_LINE
    return memory[first : first + count]


@njit(cache=True, nogil=True, error_model="numpy")
def _attend_heads(
    arrays: WalkArrays,
    block: int,
    first_head: int,
    end_head: int,
    query: Numbers,
    keys: Numbers,
    values: Numbers,
    scale: float,
    window: int,
    scratch: Floats,
    mixed: Numbers,
) -> None:
    """A block's rows, for the query heads of neighbouring key heads.

    A line is one row and query head of a key head's group: line = row · group + query head.
    """
    first_row, first_kv = arrays.first_rows[block], arrays.first_kvs[block]
    rows, count = arrays.row_counts[block], arrays.kv_counts[block]
    slots = arrays.kv_slots[first_kv : first_kv + count]
    heads, group, width = end_head - first_head, query.shape[1] // keys.shape[1], query.shape[2]
    lines = rows * group

    vectors = heads * _even_lines(lines) * _whole_vectors(width)
    queries = scratch[:vectors].reshape(heads, _even_lines(lines), _whole_vectors(width))
    sums = scratch[vectors : 2 * vectors].reshape(heads, _even_lines(lines), _whole_vectors(width))
    scores = scratch[2 * vectors :][: heads * _even_lines(lines) * _whole_vectors(count)].reshape(
        heads, _even_lines(lines), _whole_vectors(count)
    )
    queries[:, lines:] = 0
    for h in range(heads):
        for line in range(lines):
            head = (first_head + h) * group + line % group
            for e in range(0, width, LANES):
                numbers = load(query, first_row + line // group, head, e)
                store(queries, h, line, e, fma(numbers, spread(np.float32(scale)), zeros()))

    _score(queries, keys, slots, first_head, scores)
    _mask(arrays, block, group, window, scores)
    sums[:] = 0
    for h in range(heads):
        for line in range(lines):
            _softmax(scores, h, line)
    _add_values(scores, values, slots, first_head, lines, sums)

    for h in range(heads):
        for line in range(lines):
            head = (first_head + h) * group + line % group
            for e in range(0, width, LANES):
                store(mixed, first_row + line // group, head, e, load(sums, h, line, e))


@njit(cache=True, nogil=True)
def _score(queries: Floats, keys: Numbers, slots: Slots, first_head: int, scores: Floats) -> None:
    """queries [heads, lines, d] against the keys of all slots → scores [heads, lines, slots]."""
    last, width = len(slots) - 1, keys.shape[2]
    for first in range(0, len(slots), SLOTS_PER_STEP):
        # The last step may have fewer slots: it repeats the last one, and `_mask` hides the copies.
        slot0, slot1 = slots[first], slots[min(first + 1, last)]
        slot2, slot3 = slots[min(first + 2, last)], slots[min(first + 3, last)]
        for h in range(queries.shape[0]):
            head = first_head + h
            for ahead in range(
                first + PREFETCH_DISTANCE,
                min(first + PREFETCH_DISTANCE + SLOTS_PER_STEP, len(slots)),
            ):
                for e in range(0, width, CACHE_LINE_BYTES // keys.itemsize):
                    prefetch(keys, slots[ahead], head, e)
            for line in range(0, queries.shape[1], 2):
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zeros()
                for e in range(0, width, LANES):
                    key0, key1 = load(keys, slot0, head, e), load(keys, slot1, head, e)
                    key2, key3 = load(keys, slot2, head, e), load(keys, slot3, head, e)
                    a, b = load(queries, h, line, e), load(queries, h, line + 1, e)
                    a0, a1 = fma(a, key0, a0), fma(a, key1, a1)
                    a2, a3 = fma(a, key2, a2), fma(a, key3, a3)
                    b0, b1 = fma(b, key0, b0), fma(b, key1, b1)
                    b2, b3 = fma(b, key2, b2), fma(b, key3, b3)
                store_sums(scores, h, line, first, a0, a1, a2, a3)
                store_sums(scores, h, line + 1, first, b0, b1, b2, b3)


@njit(cache=True, nogil=True)
def _mask(arrays: WalkArrays, block: int, group: int, window: int, scores: Floats) -> None:
    """Masks the slots that a row may not see, and the scores after the last slot."""
    first_row, first_kv = arrays.first_rows[block], arrays.first_kvs[block]
    rows, count = arrays.row_counts[block], arrays.kv_counts[block]
    committed = arrays.committed[block]
    tail = count - committed
    scores[:, :, count:] = MASKED
    for row in range(rows):
        position = arrays.row_positions[first_row + row]
        tail_mask = arrays.mask_starts[block] + row * tail
        # Only a window hides committed rows, so mostly none of them is checked.
        for j in range(0 if position >= window else committed, count):
            is_far = position - arrays.kv_positions[first_kv + j] >= window
            if is_far or (j >= committed and not arrays.masks[tail_mask + j - committed]):
                scores[:, row * group : (row + 1) * group, j] = MASKED


@njit(cache=True, nogil=True, error_model="numpy")
def _softmax(scores: Floats, h: int, line: int) -> None:
    """Turns scores[h, line] into weights."""
    highest = spread(MASKED)
    for j in range(0, scores.shape[2], LANES):
        highest = maximum(highest, load(scores, h, line, j))
    most = largest(highest)
    weights = scores[h, line]
    for j in range(len(weights)):
        below = weights[j] - most
        weights[j] = fast_exp(below) if below > NEGLIGIBLE else np.float32(0.0)
    share = np.float32(1.0) / np.float32(exact_sum(scores, h, line))
    for j in range(len(weights)):
        weights[j] *= share


@njit(cache=True, nogil=True)
def _add_values(
    weights: Floats, values: Numbers, slots: Slots, first_head: int, lines: int, sums: Floats
) -> None:
    """sums [heads, lines, d] += weights [heads, lines, slots] · values of all slots."""
    last, width = len(slots) - 1, values.shape[2]
    for first in range(0, len(slots), SLOTS_PER_STEP):
        slot0, slot1 = slots[first], slots[min(first + 1, last)]
        slot2, slot3 = slots[min(first + 2, last)], slots[min(first + 3, last)]
        for h in range(sums.shape[0]):
            head = first_head + h
            for ahead in range(
                first + PREFETCH_DISTANCE,
                min(first + PREFETCH_DISTANCE + SLOTS_PER_STEP, len(slots)),
            ):
                for e in range(0, width, CACHE_LINE_BYTES // values.itemsize):
                    prefetch(values, slots[ahead], head, e)
            for e in range(0, width, LANES):
                value0, value1 = load(values, slot0, head, e), load(values, slot1, head, e)
                value2, value3 = load(values, slot2, head, e), load(values, slot3, head, e)
                for line in range(lines):
                    # One slot after the other, so that masked ones in between change no bit.
                    total = fma(spread(weights[h, line, first]), value0, load(sums, h, line, e))
                    total = fma(spread(weights[h, line, first + 1]), value1, total)
                    total = fma(spread(weights[h, line, first + 2]), value2, total)
                    total = fma(spread(weights[h, line, first + 3]), value3, total)
                    store(sums, h, line, e, total)
