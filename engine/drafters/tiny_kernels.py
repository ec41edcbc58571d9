"""The forward pass of a small Llama in compiled loops, without torch.

Eager torch spends 500 to 900 µs on a token of a 64×2 model, nearly all of it between operators.
Weights are packed in tiles of TILE outputs and KV rows in pages of PAGE, both constants, so that
LLVM turns every inner loop into straight vector code.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.cpu.fast_math import fast_exp

Floats = NDArray[np.float32]

TILE = 64
"""Outputs per weight tile: the four 512-bit sums of a row stay in the first-level cache."""
PAGE = 64
"""KV rows per page."""

MASKED = np.float32(-1e30)


class TinyWeights(NamedTuple):
    """Matrices are [tiles, inputs, TILE], with a leading dimension for layers."""

    embedding: Floats  # [vocabulary, hidden]
    attention_norm: Floats  # [layers, hidden]
    qkv: Floats
    attention_output: Floats
    mlp_norm: Floats  # [layers, hidden]
    gate_up: Floats
    down: Floats
    final_norm: Floats  # [hidden]
    lm_head: Floats
    rope_cos: Floats  # [positions, head_dim / 2]
    rope_sin: Floats
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float


class KVPages(NamedTuple):
    """The last dimension is the row within its page, so sums over rows read contiguous memory."""

    keys: Floats  # [layers, pages, kv_heads, head_dim, PAGE]
    values: Floats


class NewRows(NamedTuple):
    """The rows that one forward adds, of any number of requests."""

    tokens: NDArray[np.int32]
    owner: NDArray[np.int64]
    """The page table row of each row's request."""
    position: NDArray[np.int64]
    slot: NDArray[np.int64]
    """The row's index among the rows of its request."""
    prefix: NDArray[np.int64]
    """A row attends to every slot of its request below this one ..."""
    tail: NDArray[np.bool_]  # [rows, tail]
    """... and to slot prefix + j wherever tail[row, j], j < tail_size[row]."""
    tail_size: NDArray[np.int64]


@njit(cache=True, nogil=True, fastmath=True)
def matmul(x: Floats, weight: Floats, out: Floats) -> None:
    """out = x @ weight. A tile stays in cache for all rows; inputs are a multiple of 4."""
    rows = x.shape[0]
    for tile in range(weight.shape[0]):
        for row in range(rows):
            for j in range(TILE):
                out[row, tile * TILE + j] = 0.0
            for i in range(0, weight.shape[1], 4):
                x0, x1, x2, x3 = x[row, i], x[row, i + 1], x[row, i + 2], x[row, i + 3]
                for j in range(TILE):
                    out[row, tile * TILE + j] += (
                        x0 * weight[tile, i, j]
                        + x1 * weight[tile, i + 1, j]
                        + x2 * weight[tile, i + 2, j]
                        + x3 * weight[tile, i + 3, j]
                    )


@njit(cache=True, nogil=True, fastmath=True)
def rms_norm(x: Floats, weight: Floats, eps: float, out: Floats) -> None:
    width = weight.shape[0]
    for row in range(x.shape[0]):
        squares = np.float32(0.0)
        for i in range(width):
            squares += x[row, i] * x[row, i]
        scale = np.float32(1.0 / np.sqrt(squares / width + eps))
        for i in range(width):
            out[row, i] = x[row, i] * scale * weight[i]


@njit(cache=True, nogil=True, fastmath=True)
def rotate_and_store(
    weights: TinyWeights,
    kv: KVPages,
    layer: int,
    tables: NDArray[np.int32],
    rows: NewRows,
    qkv: Floats,
) -> None:
    """Applies rotary positions to queries and keys, and writes keys and values into their pages."""
    head_dim, half = weights.head_dim, weights.head_dim // 2
    kv_at = weights.heads * head_dim
    scale = np.float32(1.0 / np.sqrt(head_dim))
    for row in range(rows.tokens.shape[0]):
        cos = weights.rope_cos[rows.position[row]]
        sin = weights.rope_sin[rows.position[row]]
        for head in range(weights.heads + weights.kv_heads):
            # The softmax scale goes into the query, once.
            factor = scale if head < weights.heads else np.float32(1.0)
            at = head * head_dim
            for i in range(half):
                left, right = qkv[row, at + i], qkv[row, at + half + i]
                qkv[row, at + i] = (left * cos[i] - right * sin[i]) * factor
                qkv[row, at + half + i] = (right * cos[i] + left * sin[i]) * factor
        page = tables[rows.owner[row], rows.slot[row] // PAGE]
        place = rows.slot[row] % PAGE
        for head in range(weights.kv_heads):
            for i in range(head_dim):
                key_at = kv_at + head * head_dim + i
                kv.keys[layer, page, head, i, place] = qkv[row, key_at]
                value_at = key_at + weights.kv_heads * head_dim
                kv.values[layer, page, head, i, place] = qkv[row, value_at]


@njit(cache=True, nogil=True, fastmath=True)
def attend(
    weights: TinyWeights,
    kv: KVPages,
    layer: int,
    tables: NDArray[np.int32],
    rows: NewRows,
    qkv: Floats,
    scores: Floats,
    out: Floats,
) -> None:
    """Softmax attention of each row over its request's visible rows, head by head."""
    head_dim, group = weights.head_dim, weights.heads // weights.kv_heads
    for row in range(rows.tokens.shape[0]):
        table = tables[rows.owner[row]]
        prefix = rows.prefix[row]
        count = prefix + rows.tail_size[row]
        pages = (count + PAGE - 1) // PAGE
        for head in range(weights.heads):
            query_at = head * head_dim
            for number in range(pages):
                page = table[number]
                for j in range(PAGE):
                    scores[number, j] = 0.0
                for i in range(0, head_dim, 4):
                    q0, q1 = qkv[row, query_at + i], qkv[row, query_at + i + 1]
                    q2, q3 = qkv[row, query_at + i + 2], qkv[row, query_at + i + 3]
                    for j in range(PAGE):
                        scores[number, j] += (
                            q0 * kv.keys[layer, page, head // group, i, j]
                            + q1 * kv.keys[layer, page, head // group, i + 1, j]
                            + q2 * kv.keys[layer, page, head // group, i + 2, j]
                            + q3 * kv.keys[layer, page, head // group, i + 3, j]
                        )
            for j in range(rows.tail_size[row]):
                if not rows.tail[row, j]:
                    scores[(prefix + j) // PAGE, (prefix + j) % PAGE] = MASKED
            for slot in range(count, pages * PAGE):
                scores[slot // PAGE, slot % PAGE] = MASKED

            highest = MASKED
            for number in range(pages):
                for j in range(PAGE):
                    highest = max(highest, scores[number, j])
            total = np.float32(0.0)
            for number in range(pages):
                for j in range(PAGE):
                    weight = fast_exp(scores[number, j] - highest)
                    scores[number, j] = weight
                    total += weight

            for i in range(head_dim):
                weighted = np.float32(0.0)
                for number in range(pages):
                    page = table[number]
                    for j in range(PAGE):
                        value = kv.values[layer, page, head // group, i, j]
                        weighted += scores[number, j] * value
                out[row, query_at + i] = weighted / total


@njit(cache=True, nogil=True, fastmath=True)
def gate(gate_up: Floats, out: Floats) -> None:
    """SwiGLU: silu(gate) · up."""
    width = out.shape[1]
    for row in range(out.shape[0]):
        # Two loops: LLVM vectorises the exponential only on its own.
        for i in range(width):
            out[row, i] = np.float32(1.0) + fast_exp(-gate_up[row, i])
        for i in range(width):
            out[row, i] = gate_up[row, i] / out[row, i] * gate_up[row, width + i]


@njit(cache=True, nogil=True, fastmath=True)
def forward(
    weights: TinyWeights,
    kv: KVPages,
    tables: NDArray[np.int32],
    rows: NewRows,
    wanted: NDArray[np.int64],
) -> Floats:
    """Adds the rows' keys and values to the pages; returns the logits of the wanted rows."""
    count, hidden = rows.tokens.shape[0], weights.final_norm.shape[0]
    stream = np.empty((count, hidden), np.float32)
    for row in range(count):
        stream[row] = weights.embedding[rows.tokens[row]]
    normed = np.empty((count, hidden), np.float32)
    qkv = np.empty((count, weights.qkv.shape[1] * TILE), np.float32)
    heads = np.empty((count, weights.heads * weights.head_dim), np.float32)
    added = np.empty((count, weights.down.shape[1] * TILE), np.float32)
    gate_up = np.empty((count, weights.gate_up.shape[1] * TILE), np.float32)
    gated = np.empty((count, weights.down.shape[2]), np.float32)
    scores = np.empty((tables.shape[1], PAGE), np.float32)

    for layer in range(weights.qkv.shape[0]):
        rms_norm(stream, weights.attention_norm[layer], weights.norm_eps, normed)
        matmul(normed, weights.qkv[layer], qkv)
        rotate_and_store(weights, kv, layer, tables, rows, qkv)
        attend(weights, kv, layer, tables, rows, qkv, scores, heads)
        matmul(heads, weights.attention_output[layer], added)
        stream += added[:, :hidden]
        rms_norm(stream, weights.mlp_norm[layer], weights.norm_eps, normed)
        matmul(normed, weights.gate_up[layer], gate_up)
        gate(gate_up, gated)
        matmul(gated, weights.down[layer], added)
        stream += added[:, :hidden]

    chosen = stream[wanted]
    normed = np.empty_like(chosen)
    rms_norm(chosen, weights.final_norm, weights.norm_eps, normed)
    logits = np.empty((len(wanted), weights.lm_head.shape[0] * TILE), np.float32)
    matmul(normed, weights.lm_head, logits)
    return logits
