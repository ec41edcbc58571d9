"""Compiled steps of a forward over quantized weights: everything between two products of rows.

Each row's steps read that row alone, and each output's product is added in one order, so neither
other rows nor the number of threads change a bit.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from engine.attention.context import Numbers, WalkArrays
from engine.attention.vector_ir import LANES
from engine.attention.vectors import load, store
from engine.attention.walk import walk_part
from engine.cpu.fast_math import fast_exp
from engine.cpu.norm_kernels import rms_norm, rotate
from engine.cpu.quantized_kernel import SCALE_GROUP, call_product
from engine.cpu.thread_team import Counters, chunk_done, chunk_failed, next_chunk, wait_for

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_MOST = np.float32(127.0)
_FEW_ROWS = 8
"""Up to this number of rows a step has one chunk for each thread: memory is read in long runs."""
_CHUNKS = 4
"""A thread's of more rows, so that others take them where it loses its processor."""
LAYER_STEPS = 10
"""A layer's steps: norm, three products, rotation, attention, its rounding, product, norm, two
products, gate, product."""
OUTPUT_STEPS = 2
"""The output layer's, after those of all layers: norm, product."""
_ROW_BY_ROW = (True, False, True, False, True, False, True, False, True, False)


class Weights(NamedTuple):
    """What a forward reads, but for the embeddings."""

    linears: Ints
    """[7 · layers + 1, 6]: each layer's query, key, value, output, gate, up, down; then the output
    layer. Their fields: the addresses of the product for its format and of its tiles, how many
    tiles, the groups of a row, where its outputs begin, whether its groups are of 16 inputs."""
    norms: Floats
    """[2 · layers + 1, hidden]: before attention, before the MLP; then the last one."""
    epsilon: float
    head_norms: Floats
    """[layers, query and key heads, head_dim], or of width 0 in families without."""
    head_epsilon: float
    biases: Floats
    """[layers, outputs of the projections], or [layers, 0]."""
    windows: Ints
    scale: float


class Rows(NamedTuple):
    """A forward's intermediate results, [rows, ...]."""

    hidden: Floats
    added: Floats
    """What the next norm adds to `hidden`."""
    normed: Floats
    numbers: NDArray[np.int8]
    """The inputs of the next product in 8 bits, with their scales and sums by groups of 32 and 16:
    as one array each, for any width."""
    scales: Floats
    sums: Floats
    fine_sums: Floats
    projected: Floats
    query: Floats
    """[rows, heads, head_dim]"""
    mixed: Floats
    """[rows, heads, head_dim]"""
    gated: Floats
    """Gate and up beside each other."""
    down: Floats
    cos: Floats
    """[rows, head_dim]"""
    sin: Floats
    slots: Ints
    """Where the rows' keys and values stand in the KV pool."""


@njit(cache=True, nogil=True, parallel=True)
def run_steps(
    threads: int,
    first: int,
    end: int,
    weights: Weights,
    rows: Rows,
    arrays: WalkArrays,
    pool: Numbers,
    counters: Counters,
) -> None:
    """Steps `first` to `end` of all layers' LAYER_STEPS, which the output layer's follow.

    pool [2 · layers, slots, kv_heads, head_dim]"""
    for _ in prange(threads):
        _work(threads, first, end, weights, rows, arrays, pool, counters)


@njit(cache=True, nogil=True)
def _work(
    threads: int,
    first: int,
    end: int,
    weights: Weights,
    rows: Rows,
    arrays: WalkArrays,
    pool: Numbers,
    counters: Counters,
) -> None:
    count = len(rows.hidden)
    most_chunks = threads if count <= _FEW_ROWS else _CHUNKS * threads
    for step in range(first, end):
        chunks = min(most_chunks, count) if _ROW_BY_ROW[step % LAYER_STEPS] else most_chunks
        chunk = next_chunk(counters, step)
        while chunk < chunks:
            try:
                _run_chunk(chunk, chunks, step, weights, rows, arrays, pool)
                chunk_done(counters, step)
            except Exception:  # it found no memory
                chunk_failed(counters, step)
            chunk = next_chunk(counters, step)
        wait_for(counters, step, chunks)


@njit(cache=True, nogil=True)
def _run_chunk(
    chunk: int,
    chunks: int,
    step: int,
    weights: Weights,
    rows: Rows,
    arrays: WalkArrays,
    pool: Numbers,
) -> None:
    layer, kind = step // LAYER_STEPS, step % LAYER_STEPS
    count = len(rows.hidden)
    start, end = chunk * count // chunks, (chunk + 1) * count // chunks
    linears = weights.linears[7 * layer : 7 * layer + 7]
    if kind == 0:
        _add_and_norm(start, end, rows, weights.norms[2 * layer], weights.epsilon)
    elif kind == 1:
        _products(chunk, chunks, linears[:3], rows, rows.projected)
    elif kind == 2:
        _rotate(start, end, layer, weights, rows, pool[2 * layer], pool[2 * layer + 1])
    elif kind == 3:
        walk_part(
            chunk, chunks, arrays, rows.query, pool[2 * layer], pool[2 * layer + 1],
            weights.scale, weights.windows[layer], rows.mixed,
        )  # fmt: skip
    elif kind == 4:
        _quantize_rows(start, end, rows, rows.mixed.reshape(count, -1))
    elif kind == 5:
        _products(chunk, chunks, linears[3:4], rows, rows.added)
    elif kind == 6:
        _add_and_norm(start, end, rows, weights.norms[2 * layer + 1], weights.epsilon)
    elif kind == 7:
        _products(chunk, chunks, linears[4:6], rows, rows.gated)
    elif kind == 8:
        _gate(start, end, rows)
    else:
        _products(chunk, chunks, linears[6:], rows, rows.added)


@njit(cache=True, nogil=True)
def _products(chunk: int, chunks: int, linears: Ints, rows: Rows, out: Floats) -> None:
    """Linear layers of the same inputs, their outputs beside each other."""
    count, stride = out.shape
    for number in range(len(linears)):
        linear = linears[number]
        first, end = chunk * linear[2] // chunks, (chunk + 1) * linear[2] // chunks
        sums = rows.fine_sums.ctypes.data if linear[5] else rows.sums.ctypes.data
        call_product(
            linear[0], linear[1], first, end, linear[3],
            rows.numbers.ctypes.data, rows.scales.ctypes.data, sums,
            count, out.ctypes.data + 4 * linear[4], stride,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _add_and_norm(start: int, end: int, rows: Rows, norm: Floats, epsilon: float) -> None:
    hidden, added, normed = rows.hidden[start:end], rows.added[start:end], rows.normed[start:end]
    for row in range(len(hidden)):
        for e in range(hidden.shape[1]):
            hidden[row, e] += added[row, e]
    rms_norm(hidden.view(np.int32), norm, epsilon, normed.view(np.int32))
    _quantize_rows(start, end, rows, rows.normed)


@njit(cache=True, nogil=True, error_model="numpy")
def _gate(start: int, end: int, rows: Rows) -> None:
    """silu(gate) · up"""
    width = rows.down.shape[1]
    for row in range(start, end):
        gate, up, result = rows.gated[row, :width], rows.gated[row, width:], rows.down[row]
        for e in range(width):
            result[e] = gate[e] / (np.float32(1.0) + fast_exp(-gate[e])) * up[e]
    _quantize_rows(start, end, rows, rows.down)


@njit(cache=True, nogil=True)
def _quantize_rows(start: int, end: int, rows: Rows, inputs: Floats) -> None:
    for row in range(start, end):
        _quantize(rows, row, inputs[row])


@njit(cache=True, nogil=True)
def _rotate(
    start: int, end: int, layer: int, weights: Weights, rows: Rows, keys: Numbers, values: Numbers
) -> None:
    projected, biases = rows.projected[start:end], weights.biases[layer]
    if len(biases):
        for row in range(len(projected)):
            for e in range(len(biases)):
                projected[row, e] += biases[e]
    query_heads, width = rows.query.shape[1:]
    heads = projected.reshape(len(projected), -1, width)
    rotate(
        heads.view(np.int32), weights.head_norms[layer], weights.head_epsilon,
        rows.cos[start:end], rows.sin[start:end],
    )  # fmt: skip
    kv_heads = keys.shape[1]
    for row in range(start, end):
        slot, own = rows.slots[row], row - start
        rows.query[row] = heads[own, :query_heads]
        for head in range(kv_heads):
            for e in range(0, width, LANES):
                key = load(heads, own, query_heads + head, e)
                store(keys, slot, head, e, key)
                value = load(heads, own, query_heads + kv_heads + head, e)
                store(values, slot, head, e, value)


# These flags let the largest number be found in vectors, which changes no bit of it.
@njit(cache=True, nogil=True, fastmath={"nnan", "nsz"}, error_model="numpy")
def _quantize(rows: Rows, row: int, inputs: Floats) -> None:
    """The row's numbers, scales and sums, where a row has `len(inputs)` of them."""
    width = len(inputs)
    groups = width // SCALE_GROUP
    numbers, scales, sums = rows.numbers, rows.scales, rows.sums
    for group in range(groups):
        first = group * SCALE_GROUP
        most = np.float32(0.0)
        for e in range(first, first + SCALE_GROUP):
            most = max(most, abs(inputs[e]))
        scale = most / _MOST
        inverse = _MOST / most if most > 0 else np.float32(0.0)
        at = row * width + first
        for e in range(SCALE_GROUP):
            numbers[at + e] = np.int8(np.rint(inputs[first + e] * inverse))
        lower, upper = np.int32(0), np.int32(0)
        for e in range(SCALE_GROUP // 2):
            lower += numbers[at + e]
            upper += numbers[at + SCALE_GROUP // 2 + e]
        index = row * groups + group
        scales[index] = scale
        sums[index] = scale * np.float32(lower + upper)
        rows.fine_sums[2 * index] = scale * np.float32(lower)
        rows.fine_sums[2 * index + 1] = scale * np.float32(upper)
