"""A compiled kernel for requests with few new rows: it reads keys and values where they lie.

Everything is computed in fp32, whatever the pool holds. Of each row of the pool all that is
needed is taken while it is at hand: of every key head (they lie side by side in memory), for all
new rows and query heads that share it. What a new row's result is rounded to depends on its own
request alone: neither other requests nor the number of threads change any order of summation.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from engine.attention.vectors import (
    LANES,
    add,
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
"""Rather than -inf: fastmath, which lets sums vectorise, may assume that there are none."""

FAINT = np.float32(-60.0)
"""Weights below exp(FAINT) of the largest are zero: far less than fp32 can add to it, they would
make products so small that processors take a hundred times as long over them."""

STEP = 4
"""Slots read together, so that a query or a sum in registers serves four of them."""

AHEAD = 8
"""How many slots ahead of what is computed memory is asked for."""

CACHE_LINE = 16
"""In fp32 numbers."""

Floats = NDArray[np.float32]
Slots = NDArray[np.int64]
Numbers = NDArray[np.float32] | NDArray[np.int16]
"""fp32, or bfloat16 as its bits."""


class WalkArrays(NamedTuple):
    """AttentionBatch for the kernel."""

    walked: NDArray[np.int64]
    """The requests to attend; masks are theirs, in this order, flat."""
    row_offsets: NDArray[np.int64]
    kv_offsets: NDArray[np.int64]
    kv_slots: Slots
    committed: NDArray[np.int64]
    masks: NDArray[np.bool_]
    mask_starts: NDArray[np.int64]
    row_positions: NDArray[np.int64]
    kv_positions: NDArray[np.int64]


@njit(cache=True, nogil=True)
def walk(
    arrays: WalkArrays,
    query: Numbers,
    keys: Numbers,
    values: Numbers,
    scale: float,
    window: int,
    softcap: float,
    sinks: Floats,
    mixed: Numbers,
) -> None:
    """query and mixed [rows, heads, d]; keys and values [slots, kv_heads, d]; all of one dtype.

    softcap 0 is none; sinks are empty or one per head.
    """
    _walk_part(0, 1, arrays, query, keys, values, scale, window, softcap, sinks, mixed)


@njit(cache=True, nogil=True, parallel=True)
def walk_parallel(
    threads: int,
    arrays: WalkArrays,
    query: Numbers,
    keys: Numbers,
    values: Numbers,
    scale: float,
    window: int,
    softcap: float,
    sinks: Floats,
    mixed: Numbers,
) -> None:
    """As `walk`."""
    for part in prange(threads):
        _walk_part(part, threads, arrays, query, keys, values, scale, window, softcap, sinks, mixed)


@njit(cache=True, nogil=True)
def _walk_part(
    part: int,
    parts: int,
    arrays: WalkArrays,
    query: Numbers,
    keys: Numbers,
    values: Numbers,
    scale: float,
    window: int,
    softcap: float,
    sinks: Floats,
    mixed: Numbers,
) -> None:
    """One of some parts of equal work: whole requests, as long runs of memory are read fastest,
    but for those that a cut falls into: their heads are shared."""
    kv_heads, group = keys.shape[1], query.shape[1] // keys.shape[1]
    total, most_lines, most_slots = 0, 0, 0
    for request in arrays.walked:
        rows, slots = _size(arrays, request)
        total += rows * slots
        most_lines, most_slots = max(most_lines, rows * group), max(most_slots, slots)
    begin, end = part * total // parts, (part + 1) * total // parts
    scratch = _aligned(kv_heads * _scratch_size(most_lines, most_slots, query.shape[2]))
    done = 0
    for nth in range(len(arrays.walked)):
        rows, slots = _size(arrays, arrays.walked[nth])
        first_head = _heads_begun(begin - done, rows * slots, kv_heads)
        end_head = _heads_begun(end - done, rows * slots, kv_heads)
        if first_head < end_head:
            _attend_heads(
                arrays, nth, first_head, end_head,
                query, keys, values, scale, window, softcap, sinks, scratch, mixed,
            )  # fmt: skip
        done += rows * slots


@njit(cache=True, nogil=True)
def _size(arrays: WalkArrays, request: int) -> tuple[int, int]:
    """A request's new rows and KV rows."""
    rows = arrays.row_offsets[request + 1] - arrays.row_offsets[request]
    return rows, arrays.kv_offsets[request + 1] - arrays.kv_offsets[request]


@njit(cache=True, nogil=True)
def _heads_begun(work: int, of_request: int, heads: int) -> int:
    """How many of a request's heads have begun when so much work of the request is done."""
    return min(max(-(-work * heads // of_request), 0), heads)


@njit(cache=True, nogil=True)
def _scratch_size(lines: int, slots: int, width: int) -> int:
    """Numbers per key head: queries, sums and scores."""
    return _even(lines) * (2 * _whole(width) + _whole(slots))


@njit(cache=True, nogil=True)
def _even(lines: int) -> int:
    """Lines are scored in pairs."""
    return lines + lines % 2


@njit(cache=True, nogil=True)
def _whole(numbers: int) -> int:
    """Room for whole vectors."""
    return (numbers + LANES - 1) // LANES * LANES


@njit(cache=True, nogil=True)
def _aligned(count: int) -> Floats:
    """Vectors that straddle two cache lines take twice as long to read."""
    room = np.empty(count + CACHE_LINE, np.float32)
    first = -(room.ctypes.data // room.itemsize) % CACHE_LINE
    return room[first : first + count]


@njit(cache=True, nogil=True, error_model="numpy")
def _attend_heads(
    arrays: WalkArrays,
    nth: int,
    first_head: int,
    end_head: int,
    query: Numbers,
    keys: Numbers,
    values: Numbers,
    scale: float,
    window: int,
    softcap: float,
    sinks: Floats,
    scratch: Floats,
    mixed: Numbers,
) -> None:
    """All new rows of one request, for the query heads of some neighbouring key heads.

    The query heads of a key head make a line for each row: line = row · group + query head.
    """
    request = arrays.walked[nth]
    first_row, first_kv = arrays.row_offsets[request], arrays.kv_offsets[request]
    rows, count = _size(arrays, request)
    slots = arrays.kv_slots[first_kv : first_kv + count]
    heads, group, width = end_head - first_head, query.shape[1] // keys.shape[1], query.shape[2]
    lines = rows * group

    vectors = heads * _even(lines) * _whole(width)
    queries = scratch[:vectors].reshape(heads, _even(lines), _whole(width))
    sums = scratch[vectors : 2 * vectors].reshape(heads, _even(lines), _whole(width))
    scores = scratch[2 * vectors :][: heads * _even(lines) * _whole(count)].reshape(
        heads, _even(lines), _whole(count)
    )
    queries[:, lines:] = 0
    for h in range(heads):
        for line in range(lines):
            head = (first_head + h) * group + line % group
            for e in range(0, width, LANES):
                numbers = load(query, first_row + line // group, head, e)
                store(queries, h, line, e, fma(numbers, spread(np.float32(scale)), zeros()))

    _score(queries, keys, slots, first_head, scores)
    if softcap > 0:
        _cap(scores, softcap)
    _hide(arrays, nth, group, window, scores)
    sums[:] = 0
    for h in range(heads):
        for line in range(lines):
            head = (first_head + h) * group + line % group
            _softmax(scores, h, line, sinks[head] if len(sinks) else MASKED)
    _mix(scores, values, slots, first_head, lines, sums)

    for h in range(heads):
        for line in range(lines):
            head = (first_head + h) * group + line % group
            for e in range(0, width, LANES):
                store(mixed, first_row + line // group, head, e, load(sums, h, line, e))


@njit(cache=True, nogil=True)
def _score(queries: Floats, keys: Numbers, slots: Slots, first_head: int, scores: Floats) -> None:
    """queries [heads, lines, d] against the keys of all slots → scores [heads, lines, slots]."""
    last, width = len(slots) - 1, keys.shape[2]
    for first in range(0, len(slots), STEP):
        # The last step may have fewer slots: what it computes of the last one again is hidden.
        slot0, slot1 = slots[first], slots[min(first + 1, last)]
        slot2, slot3 = slots[min(first + 2, last)], slots[min(first + 3, last)]
        for h in range(queries.shape[0]):
            head = first_head + h
            for ahead in range(first + AHEAD, min(first + AHEAD + STEP, len(slots))):
                for e in range(0, width, LANES):
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
def _cap(scores: Floats, softcap: float) -> None:
    for h in range(scores.shape[0]):
        for line in range(scores.shape[1]):
            for j in range(scores.shape[2]):
                scores[h, line, j] = np.float32(softcap * np.tanh(scores[h, line, j] / softcap))


@njit(cache=True, nogil=True)
def _hide(arrays: WalkArrays, nth: int, group: int, window: int, scores: Floats) -> None:
    """Masks what a row may not see, and the room behind the last slot."""
    request = arrays.walked[nth]
    first_row, first_kv = arrays.row_offsets[request], arrays.kv_offsets[request]
    rows, count = _size(arrays, request)
    committed = arrays.committed[request]
    tail = count - committed
    scores[:, :, count:] = MASKED
    for row in range(rows):
        position = arrays.row_positions[first_row + row]
        tail_mask = arrays.mask_starts[nth] + row * tail
        # Committed rows are hidden by a window only, so mostly not at all.
        for j in range(0 if position >= window else committed, count):
            is_far = position - arrays.kv_positions[first_kv + j] >= window
            if is_far or (j >= committed and not arrays.masks[tail_mask + j - committed]):
                scores[:, row * group : (row + 1) * group, j] = MASKED


@njit(fastmath=True, cache=True, nogil=True)
def _softmax(scores: Floats, h: int, line: int, sink: float) -> None:
    """Turns scores[h, line] into weights; the sink takes its share."""
    highest = spread(np.float32(sink))
    for j in range(0, scores.shape[2], LANES):
        highest = maximum(highest, load(scores, h, line, j))
    most = largest(highest)
    weights = scores[h, line]
    for j in range(len(weights)):
        below = weights[j] - most
        weights[j] = fast_exp(below) if below > FAINT else np.float32(0.0)
    total = fast_exp(np.float32(sink) - most)
    for j in range(len(weights)):
        total += weights[j]
    for j in range(len(weights)):
        weights[j] /= total


@njit(cache=True, nogil=True)
def _mix(
    weights: Floats, values: Numbers, slots: Slots, first_head: int, lines: int, sums: Floats
) -> None:
    """Adds the values of all slots, weighted [heads, lines, slots], to sums [heads, lines, d]."""
    last, width = len(slots) - 1, values.shape[2]
    for first in range(0, len(slots), STEP):
        slot0, slot1 = slots[first], slots[min(first + 1, last)]
        slot2, slot3 = slots[min(first + 2, last)], slots[min(first + 3, last)]
        for h in range(sums.shape[0]):
            head = first_head + h
            for ahead in range(first + AHEAD, min(first + AHEAD + STEP, len(slots))):
                for e in range(0, width, LANES):
                    prefetch(values, slots[ahead], head, e)
            for e in range(0, width, LANES):
                value0, value1 = load(values, slot0, head, e), load(values, slot1, head, e)
                value2, value3 = load(values, slot2, head, e), load(values, slot3, head, e)
                for line in range(lines):
                    step = fma(spread(weights[h, line, first]), value0, zeros())
                    step = fma(spread(weights[h, line, first + 1]), value1, step)
                    step = fma(spread(weights[h, line, first + 2]), value2, step)
                    step = fma(spread(weights[h, line, first + 3]), value3, step)
                    store(sums, h, line, e, add(load(sums, h, line, e), step))
