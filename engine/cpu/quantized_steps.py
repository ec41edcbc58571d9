"""Compiled steps of a forward over quantized weights: everything between two products of rows.

Each row's steps read that row alone, and each output's product is added in one order, so neither
other rows nor the number of threads change a bit.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from engine.attention.vectors import LANES, load, store
from engine.attention.walk import Numbers, WalkArrays, walk_parallel
from engine.cpu.fast_math import fast_exp
from engine.cpu.norm_kernels import rms_norm, rotate
from engine.cpu.quantized_kernel import SCALE_GROUP, call_product

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_MOST = np.float32(127.0)
_SERIAL_ROWS = 4
"""Up to this number of rows, waking the other threads takes longer than the rows' own steps."""
_NORM, _MIXED, _GATE = range(3)

FIELDS = 6
"""What describes a linear layer: the addresses of the product for its format and of its tiles, how
many tiles, the groups of a row, where its outputs begin, whether its groups are of 16 inputs."""


class Weights(NamedTuple):
    """What a forward reads, but for the embeddings."""

    linears: Ints
    """[layers, 7, FIELDS]: query, key, value, output, gate, up, down."""
    norms: Floats
    """[layers, 2, hidden]: before attention, before the MLP."""
    epsilon: float
    head_norms: Floats
    """[layers, query and key heads, head_dim], or of width 0 in families without."""
    head_epsilon: float
    biases: Floats
    """[layers, outputs of the projections], or [layers, 0]."""
    windows: Ints
    scale: float
    last_norm: Floats
    head: Ints
    """[1, FIELDS]: the output layer."""


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
    gated: Floats
    """Gate and up beside each other."""
    down: Floats
    cos: Floats
    """[rows, head_dim]"""
    sin: Floats
    slots: Ints
    """Where the rows' keys and values stand in the KV pool."""


@njit(cache=True, nogil=True)
def attention_inputs(
    threads: int, layer: int, weights: Weights, rows: Rows, keys: Numbers, values: Numbers
) -> None:
    """From hidden states to rotated queries in `rows.query`, and keys and values in the pool."""
    _prepare_rows(threads, _NORM, rows, weights.norms[layer, 0], weights.epsilon)
    _products(threads, weights.linears[layer, 0:3], rows, rows.projected)
    _rotate_rows(threads, layer, weights, rows, keys, values)


@njit(cache=True, nogil=True)
def rest_of_layer(threads: int, layer: int, weights: Weights, rows: Rows) -> None:
    """From attention's result in `rows.mixed` to what the next norm adds."""
    norm, epsilon = weights.norms[layer, 1], weights.epsilon
    _prepare_rows(threads, _MIXED, rows, norm, epsilon)
    _products(threads, weights.linears[layer, 3:4], rows, rows.added)
    _prepare_rows(threads, _NORM, rows, norm, epsilon)
    _products(threads, weights.linears[layer, 4:6], rows, rows.gated)
    _prepare_rows(threads, _GATE, rows, norm, epsilon)
    _products(threads, weights.linears[layer, 6:7], rows, rows.added)


@njit(cache=True, nogil=True)
def whole_layers(
    threads: int,
    first: int,
    end: int,
    weights: Weights,
    rows: Rows,
    arrays: WalkArrays,
    pool: Numbers,
    sinks: Floats,
) -> None:
    """Layers whose attention walks over the pool: [2 · layers, slots, kv_heads, head_dim]."""
    mixed = rows.mixed.reshape(rows.query.shape)
    for layer in range(first, end):
        keys, values = pool[2 * layer], pool[2 * layer + 1]
        attention_inputs(threads, layer, weights, rows, keys, values)
        walk_parallel(
            threads, arrays, rows.query, keys, values,
            weights.scale, weights.windows[layer], 0.0, sinks, mixed,
        )  # fmt: skip
        rest_of_layer(threads, layer, weights, rows)


@njit(cache=True, nogil=True)
def output_logits(threads: int, weights: Weights, rows: Rows, logits: Floats) -> None:
    """The logits of all of the rows."""
    _prepare_rows(threads, _NORM, rows, weights.last_norm, weights.epsilon)
    _products(threads, weights.head, rows, logits)


@njit(cache=True, nogil=True, parallel={"fusion": False})
def _products(threads: int, linears: Ints, rows: Rows, out: Floats) -> None:
    """Linear layers of the same inputs, their outputs beside each other."""
    count, stride = out.shape
    for thread in prange(threads):
        for number in range(len(linears)):
            linear = linears[number]
            first, end = thread * linear[2] // threads, (thread + 1) * linear[2] // threads
            sums = rows.fine_sums.ctypes.data if linear[5] else rows.sums.ctypes.data
            call_product(
                linear[0], linear[1], first, end, linear[3],
                rows.numbers.ctypes.data, rows.scales.ctypes.data, sums,
                count, out.ctypes.data + 4 * linear[4], stride,
            )  # fmt: skip


@njit(cache=True, nogil=True, parallel={"fusion": False})
def _prepare_rows(threads: int, step: int, rows: Rows, norm: Floats, epsilon: float) -> None:
    """The inputs of the next product, from what the step names."""
    count = len(rows.hidden)
    if count <= _SERIAL_ROWS:
        _prepare_part(0, count, step, rows, norm, epsilon)
    else:
        for thread in prange(threads):
            start, end = thread * count // threads, (thread + 1) * count // threads
            _prepare_part(start, end, step, rows, norm, epsilon)


@njit(cache=True, nogil=True)
def _prepare_part(
    start: int, end: int, step: int, rows: Rows, norm: Floats, epsilon: float
) -> None:
    if step == _NORM:
        hidden, normed = rows.hidden[start:end], rows.normed[start:end]
        for row in range(len(hidden)):
            for e in range(hidden.shape[1]):
                hidden[row, e] += rows.added[start + row, e]
        rms_norm(hidden.view(np.int32), norm, epsilon, normed.view(np.int32))
    for row in range(start, end):
        if step == _NORM:
            _quantize(rows, row, rows.normed[row])
        elif step == _GATE:
            _gate(rows, row)
        else:
            _quantize(rows, row, rows.mixed[row])


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _gate(rows: Rows, row: int) -> None:
    """silu(gate) · up"""
    width = rows.down.shape[1]
    gate, up, result = rows.gated[row, :width], rows.gated[row, width:], rows.down[row]
    for e in range(width):
        result[e] = gate[e] / (np.float32(1.0) + fast_exp(-gate[e])) * up[e]
    _quantize(rows, row, result)


@njit(cache=True, nogil=True, parallel={"fusion": False})
def _rotate_rows(
    threads: int, layer: int, weights: Weights, rows: Rows, keys: Numbers, values: Numbers
) -> None:
    count = len(rows.query)
    if count <= _SERIAL_ROWS:
        _rotate_part(0, count, layer, weights, rows, keys, values)
    else:
        for thread in prange(threads):
            start, end = thread * count // threads, (thread + 1) * count // threads
            _rotate_part(start, end, layer, weights, rows, keys, values)


@njit(cache=True, nogil=True)
def _rotate_part(
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


@njit(cache=True, nogil=True, fastmath={"contract", "nnan", "nsz"}, error_model="numpy")
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
