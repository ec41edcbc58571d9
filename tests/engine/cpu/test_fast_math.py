"""The exponential of compiled kernels, against numpy's in float64."""

import numpy as np
from numba import njit

from engine.cpu.fast_math import fast_exp


@njit(fastmath=True)
def exponentials(numbers):  # type: ignore[no-untyped-def]
    """In a fastmath kernel, as all that use it."""
    results = np.empty_like(numbers)
    for i in range(len(numbers)):
        results[i] = fast_exp(numbers[i])
    return results


def test_the_relative_error_is_below_1e_7_between_the_limits() -> None:
    numbers = np.linspace(-87, 88, 1_000_001).astype(np.float32)
    exact = np.exp(numbers.astype(np.float64))
    assert np.abs(exponentials(numbers) / exact - 1).max() < 1e-7


def test_inputs_beyond_the_limits_are_clipped_to_them() -> None:
    ends = exponentials(np.array([-87, 88], np.float32))
    beyond = exponentials(np.array([-1e30, -87.5, 88.5, 1e30], np.float32))
    assert np.array_equal(beyond, np.repeat(ends, 2))
    assert ends[0] >= np.finfo(np.float32).tiny
    assert np.isfinite(ends).all()
