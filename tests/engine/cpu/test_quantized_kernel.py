"""The product of quantized weights: right, and equal in every bit on all processors and batches."""

import ctypes
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.cpu.quantized_kernel import product_address
from engine.cpu.quantized_weights import GGUF_TYPES, QuantizedLinear, dequantized, from_gguf
from tests.engine.cpu.test_quantized_weights import random_blocks

ROWS, INPUTS, OUTPUTS = 9, 512, 40
PROCESSORS = {
    "AVX2": ("haswell", "+avx2,+fma,+f16c,+avx,+sse4.2"),
    "any": ("x86-64", "+fma,+avx,+f16c,+sse4.2"),
}


def random_rows() -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Numbers [rows, inputs], and the scale of each group of 32."""
    rng = np.random.default_rng(1)
    numbers = rng.integers(-127, 128, (ROWS, INPUTS)).astype(np.int8)
    numbers[0] = 127  # the largest sums
    return numbers, rng.uniform(0.01, 0.1, (ROWS, INPUTS // 32)).astype(np.float32)


def product(linear: QuantizedLinear, count: int) -> NDArray[np.float32]:
    numbers, scales = (np.ascontiguousarray(part[:count]) for part in random_rows())
    tiles, groups, _ = linear.tiles.shape
    whole = numbers.reshape(count, groups, -1).sum(-1, dtype=np.int32)
    sums = whole.astype(np.float32) * np.repeat(scales, groups // scales.shape[1], 1)
    out = np.full((count, tiles * 16), np.nan, np.float32)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10)(product_address(linear.kind))
    addresses = [each.ctypes.data for each in (numbers, scales, sums)]
    call(linear.tiles.ctypes.data, 0, tiles, groups, *addresses, count, out.ctypes.data, tiles * 16)
    return out[:, : linear.outputs]


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_product_is_that_of_the_values_whatever_rows_are_beside(kind: str) -> None:
    linear = from_gguf(kind, random_blocks(kind, OUTPUTS, INPUTS))
    numbers, scales = random_rows()
    whole = product(linear, ROWS)
    inputs = numbers.reshape(ROWS, -1, 32) * scales[..., None].astype(np.float64)
    expected = inputs.reshape(ROWS, INPUTS) @ dequantized(linear).T.astype(np.float64)
    np.testing.assert_allclose(whole, expected, atol=2e-5 * np.abs(expected).max())
    for count in range(1, ROWS):
        np.testing.assert_array_equal(product(linear, count), whole[:count])


def digest() -> str:
    """The digest of the products of all formats."""
    linears = [from_gguf(kind, random_blocks(kind, OUTPUTS, INPUTS)) for kind in GGUF_TYPES]
    return hashlib.sha256(
        b"".join(product(linear, ROWS).tobytes() for linear in linears)
    ).hexdigest()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names processors of this kind")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_other_processors_instructions_give_the_same_bits(processor: str, tmp_path: Path) -> None:
    name, features = PROCESSORS[processor]
    script = f"import {__name__} as here; print(here.digest())"
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": name,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == digest()
