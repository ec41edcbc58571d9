"""Draft steps of a whole batch in compiled calls: forward, sampling and beam search.

Functions called from Python take few, plain arrays: numba needs 5 µs to unbox TinyWeights, 0.3 µs
for two arrays.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.drafters.beam import TreeArrays, grow_level, tree_views
from engine.drafters.tiny_kernels import Floats, KVPages, NewRows, forward
from engine.drafters.tiny_weights import unpacked
from engine.sampling.cpu_kernels import perturbed_top
from policies.tree import ROOT


@njit(cache=True, nogil=True)
def committed_rows(
    tokens: NDArray[np.int32],
    counts: NDArray[np.int64],
    table_rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NewRows:
    """counts[i] new rows after the lengths[i] rows of the i-th request, with causal masks."""
    count = len(tokens)
    table_row = np.empty(count, np.int64)
    slot = np.empty(count, np.int64)
    row = 0
    for i in range(len(counts)):
        for step in range(counts[i]):
            table_row[row] = table_rows[i]
            slot[row] = lengths[i] + step
            row += 1
    no_tail = np.zeros((count, 0), np.bool_)
    return NewRows(tokens, table_row, slot, slot, slot + 1, no_tail, np.zeros(count, np.int64))


@njit(cache=True, nogil=True)
def frontier_rows(
    trees: TreeArrays,
    drafting: NDArray[np.int64],
    table_rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NewRows:
    """The nodes of the deepest levels; node j of a tree is row j after the committed rows."""
    count, tail = 0, 0
    for job in drafting:
        count += trees.size[job] - trees.level[job]
        tail = max(tail, trees.size[job])
    tokens = np.empty(count, np.int32)
    table_row = np.empty(count, np.int64)
    position = np.empty(count, np.int64)
    slot = np.empty(count, np.int64)
    prefix = np.empty(count, np.int64)
    visible = np.zeros((count, tail), np.bool_)
    tail_size = np.empty(count, np.int64)
    row = 0
    for i in range(len(drafting)):
        job = drafting[i]
        for node in range(trees.level[job], trees.size[job]):
            tokens[row] = trees.tokens[job, node]
            table_row[row] = table_rows[i]
            position[row] = lengths[i] + trees.depth[job] - 1
            slot[row] = lengths[i] + node
            prefix[row] = lengths[i]
            tail_size[row] = trees.size[job]
            ancestor = node
            while ancestor != ROOT:
                visible[row, ancestor] = True
                ancestor = trees.parents[job, ancestor]
            row += 1
    return NewRows(tokens, table_row, position, slot, prefix, visible, tail_size)


@njit(cache=True, nogil=True)
def _grow(
    logits: Floats,
    vocab_size: int,
    integers: NDArray[np.int64],
    reals: NDArray[np.float64],
    trees: TreeArrays,
    drafting: NDArray[np.int64],
) -> None:
    width = 0
    for job in drafting:
        width = max(width, trees.width[job])
    all_tokens = np.empty(0, np.int32)
    rows = logits.shape[0]
    tokens = np.empty((rows, width), np.int32)
    confidence = np.empty((rows, width), np.float32)
    row = 0
    for job in drafting:
        for _ in range(max(trees.size[job] - trees.level[job], 1)):
            top_k, seed_low, seed_high, position = integers[:, job]
            temperature, top_p, min_p = reals[:, job]
            perturbed_top(
                logits[row, :vocab_size],
                all_tokens,
                np.float32(temperature),
                top_k,
                top_p,
                min_p,
                seed_low,
                seed_high,
                position + trees.depth[job],
                tokens[row],
                confidence[row],
            )
            row += 1
    grow_level(trees, drafting, tokens, confidence)


@njit(cache=True, nogil=True)
def grow(
    logits: Floats,
    vocab_size: int,
    integers: NDArray[np.int64],
    reals: NDArray[np.float64],
    nodes: NDArray[np.int32],
    confidences: Floats,
    counts: NDArray[np.int64],
    drafting: NDArray[np.int64],
) -> None:
    """Adds a level from the logits of the jobs' frontier rows, in the order of `drafting`."""
    trees = tree_views(nodes, confidences, counts)
    _grow(logits, vocab_size, integers, reals, trees, drafting)


@njit(cache=True, nogil=True)
def extend(
    numbers: Floats,
    layout: NDArray[np.int64],
    kv: Floats,
    tables: NDArray[np.int32],
    table_rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    tokens: NDArray[np.int32],
    counts: NDArray[np.int64],
    wanted: NDArray[np.int64],
) -> Floats:
    """Runs committed tokens, counts[i] of the i-th request; the logits of the wanted rows."""
    rows = committed_rows(tokens, counts, table_rows, lengths)
    return forward(unpacked(numbers, layout), KVPages(kv[0], kv[1]), tables, rows, wanted)


@njit(cache=True, nogil=True)
def step(
    numbers: Floats,
    layout: NDArray[np.int64],
    kv: Floats,
    tables: NDArray[np.int32],
    table_rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    nodes: NDArray[np.int32],
    confidences: Floats,
    counts: NDArray[np.int64],
    drafting: NDArray[np.int64],
) -> Floats:
    """Runs the deepest level of the drafting jobs' trees; the logits of its nodes."""
    trees = tree_views(nodes, confidences, counts)
    rows = frontier_rows(trees, drafting, table_rows, lengths)
    wanted = np.arange(len(rows.tokens))
    return forward(unpacked(numbers, layout), KVPages(kv[0], kv[1]), tables, rows, wanted)


@njit(cache=True, nogil=True)
def step_and_grow(
    numbers: Floats,
    layout: NDArray[np.int64],
    kv: Floats,
    tables: NDArray[np.int32],
    table_rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    nodes: NDArray[np.int32],
    confidences: Floats,
    counts: NDArray[np.int64],
    drafting: NDArray[np.int64],
    vocab_size: int,
    integers: NDArray[np.int64],
    reals: NDArray[np.float64],
) -> None:
    """`step` and `grow` in one call, if sampling takes the logits as they are."""
    logits = step(
        numbers, layout, kv, tables, table_rows, lengths, nodes, confidences, counts, drafting
    )
    trees = tree_views(nodes, confidences, counts)
    _grow(logits, vocab_size, integers, reals, trees, drafting)
