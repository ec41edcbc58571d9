"""Guarantees of the compiled walk beyond equality with the definition."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.context import AttentionBatch, Scoring
from engine.attention.packed import PackedPlan
from engine.attention.vector_ir import LANES
from engine.attention.vectors import exact_sum
from tests.engine.attention.batches import GreedyPlan, random_batch, random_tensors, reference

DTYPES = (torch.float32, torch.bfloat16)
SCORING = Scoring(0.25)


def alone(batch: AttentionBatch, request: int) -> AttentionBatch:
    """One request of a batch, as a batch of its own."""
    rows, kv = batch.rows(request), batch.kv_rows(request)
    return replace(
        batch,
        row_offsets=np.array([0, rows.stop - rows.start]),
        kv_offsets=np.array([0, kv.stop - kv.start]),
        committed=batch.committed[request : request + 1],
        masks=(batch.masks[request],),
        kv_slots=batch.kv_slots[kv],
        row_positions=batch.row_positions[rows],
        kv_positions=batch.kv_positions[kv],
    )


def attend_with(
    threads: int,
    batch: AttentionBatch,
    tensors: tuple[Tensor, ...],
    plan: type[PackedPlan] = PackedPlan,
) -> Tensor:
    before = torch.get_num_threads()
    query, keys, values = tensors
    torch.set_num_threads(threads)
    try:
        return plan(batch).attend(query, keys, values, SCORING)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_bit_identical_in_any_batch_and_on_any_threads(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    batch = random_batch(rng, 7)
    query, keys, values = random_tensors(rng, batch, dtype=dtype, head_dim=64)
    together = attend_with(1, batch, (query, keys, values))
    assert torch.equal(attend_with(2, batch, (query, keys, values)), together)
    for request in range(len(batch)):
        own = query[batch.rows(request)]
        by_itself = attend_with(1, alone(batch, request), (own, keys, values))
        assert torch.equal(by_itself, together[batch.rows(request)])


@pytest.mark.parametrize("head_dim", [2, 8, 24, 32, 80, 128])
@pytest.mark.parametrize("group", [1, 3])
def test_any_head_dim_and_odd_numbers_of_lines_are_supported(head_dim: int, group: int) -> None:
    rng = np.random.default_rng(head_dim)
    batch = random_batch(rng, 4, group=group)
    tensors = random_tensors(rng, batch, heads=6, head_dim=head_dim)
    scoring = Scoring(head_dim**-0.5)
    expected = reference(batch, *tensors, scoring)
    mixed = PackedPlan(batch).attend(*tensors, scoring)
    torch.testing.assert_close(mixed.double(), expected, atol=1e-5, rtol=0)


def test_float16_keys_and_values_are_read_exactly() -> None:
    rng = np.random.default_rng(4)
    batch = random_batch(rng, 5)
    query, keys, values = random_tensors(rng, batch, head_dim=72)
    keys, values = keys.half(), values.half()
    mixed = PackedPlan(batch).attend(query, keys, values, SCORING)
    exact = PackedPlan(batch).attend(query, keys.float(), values.float(), SCORING)
    assert torch.equal(mixed, exact)


def test_bfloat16_is_rounded_once() -> None:
    rng = np.random.default_rng(2)
    batch = random_batch(rng, 5)
    tensors = random_tensors(rng, batch, dtype=torch.bfloat16, head_dim=64)
    expected = reference(batch, *tensors, SCORING)
    mixed = PackedPlan(batch).attend(*tensors, SCORING)
    # Half a unit in the last place of bfloat16, and fp32's own error.
    torch.testing.assert_close(mixed.double(), expected, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_that_finds_no_memory_is_an_error(threads: int) -> None:
    """Or its rows would be whatever was in memory before."""
    rng = np.random.default_rng(6)
    batch = random_batch(rng, 7)
    with pytest.raises(MemoryError):
        attend_with(threads, batch, random_tensors(rng, batch), GreedyPlan)


@njit
def exact_total(weights: NDArray[np.float32]) -> float:
    return exact_sum(weights, 0, 0)


def test_a_softmaxs_total_does_not_depend_on_where_its_slots_are() -> None:
    """Nor on masked slots in between: so a node of a draft tree has its path's own sums."""
    rng = np.random.default_rng(5)
    slots, width = 300, 20 * LANES
    weights = np.exp(-rng.exponential(4, slots)).astype(np.float32)
    totals = set()
    for _ in range(20):
        row = np.zeros((1, 1, width), np.float32)
        row[0, 0, rng.permutation(width)[:slots]] = weights
        totals.add(exact_total(row))
    assert totals == {np.rint(weights.astype(np.float64) * 2**36).sum() / 2**36}
