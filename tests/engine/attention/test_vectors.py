"""Vectors load and store arrays of either dtype up to the ends of their rows, and not beyond."""

import numpy as np
import pytest
import torch
from numba import njit
from numpy.typing import NDArray

from engine.attention.vector_ir import LANES
from engine.attention.vectors import (
    fma,
    largest,
    load,
    maximum,
    spread,
    store,
    store_sums,
    zeros,
)

WIDTHS = (2, 8, 31, 32, 34, 64, 80)
"""Less than a vector, whole vectors, and whole vectors followed by a part of one."""


@njit
def copy_scaled(source, factor, target):  # type: ignore[no-untyped-def]
    """Every second row is not written."""
    for i in range(source.shape[0]):
        for j in range(0, source.shape[1], 2):
            for k in range(0, source.shape[2], LANES):
                vector = fma(load(source, i, j, k), spread(np.float32(factor)), zeros())
                store(target, i, j, k, vector)


@njit
def sums_and_largest(rows, sums):  # type: ignore[no-untyped-def]
    """rows [1, 4, LANES] → sums [1, 1, 4], and the largest number of the first two rows."""
    v0, v1, v2, v3 = (
        load(rows, 0, 0, 0),
        load(rows, 0, 1, 0),
        load(rows, 0, 2, 0),
        load(rows, 0, 3, 0),
    )
    store_sums(sums, 0, 0, 0, v0, v1, v2, v3)
    return largest(maximum(v0, v1))


def as_stored(numbers: torch.Tensor) -> NDArray[np.float32] | NDArray[np.int16]:
    return (numbers.view(torch.int16) if numbers.dtype == torch.bfloat16 else numbers).numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_copied_to_their_ends(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(width)
    source = torch.randn(3, 4, width).to(dtype)
    target = torch.full_like(source, 7)
    copy_scaled(as_stored(source), 1.0, as_stored(target))
    expected = source.clone()
    expected[:, 1::2] = 7
    assert torch.equal(target, expected)


def test_bfloat16_is_rounded_as_by_torch() -> None:
    torch.manual_seed(0)
    source = torch.randn(50, 1, 96).bfloat16()
    target = torch.empty_like(source)
    copy_scaled(as_stored(source), 1 + 2**-8, as_stored(target))
    product = source.float() * (1 + 2**-8)
    assert (product != product.bfloat16()).any()  # there is something to round
    assert torch.equal(target, product.bfloat16())


def test_sums_and_maxima_cover_all_lanes() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-1000, 1000, (1, 4, LANES)).astype(np.float32)
    sums = np.zeros((1, 1, 4), np.float32)
    for lane in range(LANES):  # where the largest number is
        rows[0, 1] = np.roll(rows[0, 1], 1)
        rows[0, 0, lane] = rows.max() + 1
        assert sums_and_largest(rows, sums) == rows[0, :2].max()
        assert np.array_equal(sums[0, 0], rows[0].sum(1))
