"""Quantized weights keep a GGUF file's values, and floats are rounded to the nearest of few."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from engine.cpu.quantized_kernel import SCALE_GROUP
from engine.cpu.quantized_weights import GGUF_TYPES, Bits, dequantized, from_gguf, quantized

HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)} | {
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)
}  # fmt: skip
"""Where a block's float16 numbers are."""


def random_blocks(kind: str, outputs: int, inputs: int) -> NDArray[np.uint8]:
    """[outputs, bytes of a row]: any bytes, but for the scales, which are numbers around zero."""
    rng = np.random.default_rng(0)
    size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (outputs, inputs // size, block_bytes), dtype=np.uint8)
    for first in HALVES[kind]:
        scales = rng.normal(0, 0.02, blocks.shape[:2]).astype(np.float16)
        blocks[..., first : first + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(outputs, -1)


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_weights_have_the_files_values(kind: str) -> None:
    blocks = random_blocks(kind, outputs=40, inputs=512)  # two tiles and a half
    linear = from_gguf(kind, blocks)
    assert (linear.outputs, linear.inputs) == (40, 512)
    expected = dequantize(blocks, GGMLQuantizationType[kind])
    np.testing.assert_array_equal(dequantized(linear), expected)


@pytest.mark.parametrize("bits", [8, 4])
def test_floats_are_rounded_by_at_most_half_a_step(bits: Bits) -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 0.05, (48, 96)).astype(np.float32)
    weight[3, :SCALE_GROUP] = 0
    weight[4, :SCALE_GROUP] = 0.25
    groups = weight.reshape(48, -1, SCALE_GROUP)
    spread = 2 * np.abs(groups).max(-1) if bits == 8 else groups.max(-1) - groups.min(-1)
    steps = spread / {8: 254, 4: 15}[bits]
    rounded = dequantized(quantized(weight, bits)).reshape(groups.shape)
    # Scales and least values are float16, rounded as well.
    bound = 0.51 * steps + 2**-10 * np.abs(groups).max(-1)
    assert (np.abs(rounded - groups) <= bound[..., None]).all()
    assert (rounded[3, 0] == 0).all()
