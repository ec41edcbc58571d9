"""A compiled kernel for requests with few new rows: it reads keys and values where they lie.

Values of a bfloat16 pool are the upper halves of fp32 numbers: shifted into place they are read
exactly, and everything is computed in fp32. A float32 pool goes the same way, shifted by nothing.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from engine.fast_math import fast_exp

MASKED = np.float32(-1e30)
"""Rather than -inf: fastmath, which lets sums vectorise, may assume that there are none."""

STEP = 4
"""Slots read together, so that a query or a sum in registers serves four of them."""

Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
"""fp32 numbers as bits; in the pools, what is stored of them: 32 or the upper 16."""


class WalkArrays(NamedTuple):
    """AttentionBatch for the kernel."""

    walked: NDArray[np.int64]
    """The requests to attend; masks are theirs, in this order, flat."""
    row_offsets: NDArray[np.int64]
    kv_offsets: NDArray[np.int64]
    kv_slots: NDArray[np.int64]
    committed: NDArray[np.int64]
    masks: NDArray[np.bool_]
    mask_starts: NDArray[np.int64]
    row_positions: NDArray[np.int64]
    kv_positions: NDArray[np.int64]


@njit(fastmath=True, cache=True, nogil=True)
def _read(pool: Bits, slots: NDArray[np.int64], first_head: int, shift: int, bits: Bits) -> None:
    """STEP slots' neighbouring heads (of the last one again, where there are fewer), as the bits
    of fp32 numbers: bits [heads, STEP, width]."""
    for step in range(STEP):
        slot = slots[min(step, len(slots) - 1)]
        for h in range(bits.shape[0]):
            for e in range(bits.shape[2]):
                bits[h, step, e] = np.int32(pool[slot, first_head + h, e]) << shift


@njit(fastmath=True, cache=True, nogil=True)
def _hidden(arrays: WalkArrays, nth: int, row: int, kv_row: int, tail: int, window: int) -> bool:
    request = arrays.walked[nth]
    row_at = arrays.row_offsets[request] + row
    kv_at = arrays.kv_offsets[request] + kv_row
    if arrays.row_positions[row_at] - arrays.kv_positions[kv_at] >= window:
        return True
    in_tail = kv_row - arrays.committed[request]
    return in_tail >= 0 and not arrays.masks[arrays.mask_starts[nth] + row * tail + in_tail]


@njit(fastmath=True, cache=True, nogil=True)
def _softmax(scores: NDArray[np.float32], sink: float) -> float:
    """Turns scores into weights and returns their sum, the sink's share included."""
    highest = np.float32(sink)
    for j in range(len(scores)):
        highest = max(highest, scores[j])
    for j in range(len(scores)):
        scores[j] = fast_exp(scores[j] - highest)
    total = fast_exp(np.float32(sink) - highest)
    for j in range(len(scores)):
        total += scores[j]
    return total


@njit(fastmath=True, cache=True, nogil=True)
def _score(query: Floats, keys: Floats, first: int, scores: Floats) -> None:
    """query [heads, lines, width] against STEP keys → scores[:, :, first : first + STEP]."""
    for h in range(query.shape[0]):
        for line in range(query.shape[1]):
            s0 = s1 = s2 = s3 = np.float32(0.0)
            for e in range(query.shape[2]):
                s0 += query[h, line, e] * keys[h, 0, e]
                s1 += query[h, line, e] * keys[h, 1, e]
                s2 += query[h, line, e] * keys[h, 2, e]
                s3 += query[h, line, e] * keys[h, 3, e]
            scores[h, line, first] = s0
            scores[h, line, first + 1] = s1
            scores[h, line, first + 2] = s2
            scores[h, line, first + 3] = s3


@njit(fastmath=True, cache=True, nogil=True)
def _mix(weights: Floats, first: int, values: Floats, sums: Floats) -> None:
    """Adds STEP values, weighted, to sums [heads, lines, width]."""
    for h in range(sums.shape[0]):
        for line in range(sums.shape[1]):
            w0, w1 = weights[h, line, first], weights[h, line, first + 1]
            w2, w3 = weights[h, line, first + 2], weights[h, line, first + 3]
            for e in range(sums.shape[2]):
                sums[h, line, e] += (w0 * values[h, 0, e] + w1 * values[h, 1, e]) + (
                    w2 * values[h, 2, e] + w3 * values[h, 3, e]
                )


@njit(fastmath=True, cache=True, nogil=True)
def _attend_heads(
    arrays: WalkArrays,
    nth: int,
    first_head: int,
    end_head: int,
    query: Floats,
    keys: Bits,
    values: Bits,
    scale: float,
    window: int,
    softcap: float,
    sinks: Floats,
    mixed: Floats,
) -> None:
    """All new rows of one request, for the query heads of some neighbouring key heads.

    Neighbouring, because a slot's heads lie side by side in memory. The query heads of a key head
    make a line for each row: line = row · group + query head.
    """
    request = arrays.walked[nth]
    first_row, first_kv = arrays.row_offsets[request], arrays.kv_offsets[request]
    rows = arrays.row_offsets[request + 1] - first_row
    slots = arrays.kv_slots[first_kv : arrays.kv_offsets[request + 1]]
    count, width = len(slots), query.shape[2]
    tail = count - arrays.committed[request]
    heads, group = end_head - first_head, query.shape[1] // keys.shape[1]
    shift = 32 - 8 * keys.itemsize
    bits = np.empty((heads, STEP, width), np.int32)
    vectors = bits.view(np.float32)

    scaled = np.empty((heads, rows * group, width), np.float32)
    for h in range(heads):
        for line in range(rows * group):
            head = (first_head + h) * group + line % group
            for e in range(width):
                scaled[h, line, e] = query[first_row + line // group, head, e] * np.float32(scale)

    # Room for whole steps; what lies behind `count` is masked.
    scores = np.empty((heads, rows * group, (count + STEP - 1) // STEP * STEP), np.float32)
    for first in range(0, count, STEP):
        _read(keys, slots[first : first + STEP], first_head, shift, bits)
        _score(scaled, vectors, first, scores)

    totals = np.empty((heads, rows * group), np.float32)
    for h in range(heads):
        for line in range(rows * group):
            row, head = line // group, (first_head + h) * group + line % group
            if softcap > 0:
                for j in range(count):
                    scores[h, line, j] = np.float32(softcap * np.tanh(scores[h, line, j] / softcap))
            # Committed rows are hidden by a window only, so mostly not at all.
            windowed = window <= arrays.row_positions[first_row + row]
            for j in range(0 if windowed else count - tail, count):
                if _hidden(arrays, nth, row, j, tail, window):
                    scores[h, line, j] = MASKED
            scores[h, line, count:] = MASKED
            totals[h, line] = _softmax(scores[h, line], sinks[head] if len(sinks) else MASKED)

    sums = np.zeros((heads, rows * group, width), np.float32)
    for first in range(0, count, STEP):
        _read(values, slots[first : first + STEP], first_head, shift, bits)
        _mix(scores, first, vectors, sums)

    for h in range(heads):
        for line in range(rows * group):
            row, head = line // group, (first_head + h) * group + line % group
            for e in range(width):
                mixed[first_row + row, head, e] = sums[h, line, e] / totals[h, line]


@njit(fastmath=True, cache=True, nogil=True)
def walk(
    arrays: WalkArrays,
    query: Floats,
    keys: Bits,
    values: Bits,
    scale: float,
    window: int,
    softcap: float,
    sinks: Floats,
    mixed: Floats,
) -> None:
    """query and mixed [rows, heads, d]; keys and values [slots, kv_heads, d] as bits.

    softcap 0 is none; sinks are empty or one per head.
    """
    kv_heads = keys.shape[1]
    for nth in range(len(arrays.walked)):
        _attend_heads(
            arrays, nth, 0, kv_heads, query, keys, values, scale, window, softcap, sinks, mixed
        )


@njit(fastmath=True, cache=True, nogil=True, parallel=True)
def walk_parallel(
    threads: int,
    arrays: WalkArrays,
    query: Floats,
    keys: Bits,
    values: Bits,
    scale: float,
    window: int,
    softcap: float,
    sinks: Floats,
    mixed: Floats,
) -> None:
    """As `walk`. Threads share the heads of every request, as requests differ in length."""
    kv_heads, requests = keys.shape[1], len(arrays.walked)
    parts = min(threads, kv_heads)
    for task in prange(parts * requests):
        part, nth = task // requests, task % requests
        _attend_heads(
            arrays, nth, part * kv_heads // parts, (part + 1) * kv_heads // parts,
            query, keys, values, scale, window, softcap, sinks, mixed,
        )  # fmt: skip
