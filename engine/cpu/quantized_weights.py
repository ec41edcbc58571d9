"""Weights of 4 to 8 bits in the tiles of quantized_kernel.py: those of a GGUF file, with its own
values, or rounded from floats.

A GGUF block is the numbers of neighbouring inputs of one output, with what they are scaled by. Each
type that is read has weights of the form scale · number + least in groups of 16 or 32 inputs.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cpu.dot_products import OUTPUTS
from engine.cpu.quantized_kernel import SCALE_GROUP, Format

Bits = Literal[4, 8]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_HALVES = {True: np.float16, False: np.float32}


class Groups(NamedTuple):
    """A matrix: weight[output, input] = scale · number + least of the input's group."""

    numbers: Bytes
    """[outputs, inputs]"""
    scales: Floats
    """[outputs, groups]"""
    least: Floats | None
    """The same; None: -128 scales."""


class QuantizedLinear(NamedTuple):
    """A linear layer without bias."""

    kind: Format
    inputs: int
    outputs: int
    tiles: Bytes
    """[tiles, groups, bytes]; the last tile may have outputs that no one reads."""


def packed(groups: Groups, *, half: bool) -> QuantizedLinear:
    """`half`: scales and least values are exact in float16."""
    outputs, inputs = groups.numbers.shape
    count = groups.scales.shape[1]
    bits = 4 if groups.numbers.max(initial=0) < 16 else 8
    kind = Format(bits, inputs // count, half, groups.least is not None)
    tiles = -(-outputs // OUTPUTS)
    numbers = _whole_tiles(groups.numbers)
    # tile, group, quad, output, input of the quad
    numbers = numbers.reshape(tiles, OUTPUTS, count, kind.group // 4, 4).transpose(0, 2, 3, 1, 4)
    numbers = numbers.reshape(tiles, count, kind.group // 4, -1)
    if bits == 4:
        half_group = kind.group // 8
        numbers = numbers[:, :, :half_group] | numbers[:, :, half_group:] << 4
    parts = [numbers.reshape(tiles, count, -1)]
    for floats in (groups.scales, groups.least):
        if floats is not None:
            lanes = _whole_tiles(floats).reshape(tiles, OUTPUTS, count).transpose(0, 2, 1)
            parts.append(np.ascontiguousarray(lanes, _HALVES[half]).view(np.uint8))
    joined = np.concatenate(parts, -1)
    assert joined.shape[-1] == kind.group_bytes
    return QuantizedLinear(kind, inputs, outputs, joined)


def _whole_tiles(rows: NDArray[Any]) -> NDArray[Any]:
    missing = -len(rows) % OUTPUTS
    return np.pad(rows, ((0, missing), (0, 0))) if missing else rows


def quantized(weight: Floats, bits: Bits) -> QuantizedLinear:
    """Rounds to the nearest of 16 numbers between a group's least and greatest weight, or of 255
    around zero."""
    grouped = weight.reshape(len(weight), -1, SCALE_GROUP)
    if bits == 8:
        scales = (np.abs(grouped).max(-1) / 127).astype(np.float16).astype(np.float32)
        least = None
        numbers = np.rint(_divided(grouped, scales)) + 128
    else:
        least = grouped.min(-1).astype(np.float16).astype(np.float32)
        spread = np.maximum(grouped.max(-1) - least, 0)
        scales = (spread / 15).astype(np.float16).astype(np.float32)
        numbers = np.rint(_divided(grouped - least[..., None], scales))
    most = 2**bits - 1
    whole = np.clip(numbers, 0, most).astype(np.uint8).reshape(weight.shape)
    return packed(Groups(whole, scales, least), half=True)


def _divided(grouped: Floats, scales: Floats) -> Floats:
    return grouped / np.where(scales == 0, np.float32(1), scales)[..., None]


def from_gguf(kind: str, blocks: Bytes) -> QuantizedLinear:
    """`kind`: one of GGUF_TYPES; blocks [outputs, bytes of a row]."""
    block_bytes, read, half = _READERS[kind]
    return packed(read(blocks.reshape(len(blocks), -1, block_bytes)), half=half)


def dequantized(linear: QuantizedLinear) -> Floats:
    """The weights that the tiles stand for, [outputs, inputs]; to compare with."""
    kind, tiles = linear.kind, len(linear.tiles)
    number_bytes = OUTPUTS * kind.group * kind.bits // 8
    numbers = linear.tiles[..., :number_bytes]
    if kind.bits == 4:
        numbers = np.concatenate([numbers & 15, numbers >> 4], -1)
    numbers = numbers.reshape(tiles, -1, kind.group // 4, OUTPUTS, 4).transpose(0, 3, 1, 2, 4)
    numbers = numbers.reshape(tiles * OUTPUTS, -1, kind.group)
    floats = np.ascontiguousarray(linear.tiles[..., number_bytes:]).view(_HALVES[kind.half])
    floats = floats.reshape(tiles, floats.shape[1], -1, OUTPUTS).transpose(2, 0, 3, 1)
    scales, *rest = floats.reshape(len(floats), tiles * OUTPUTS, -1, 1).astype(np.float32)
    least = rest[0] if rest else np.float32(-128) * scales
    return (scales * numbers + least).reshape(tiles * OUTPUTS, -1)[: linear.outputs]


def _half(blocks: Bytes, first: int) -> Floats:
    """The float16 at byte `first` of each block."""
    return (
        np.ascontiguousarray(blocks[..., first : first + 2])
        .view(np.float16)[..., 0]
        .astype(np.float32)
    )


def _nibbles(packed_bytes: Bytes) -> Bytes:
    """Lower halves of all bytes, then the upper ones."""
    return np.concatenate([packed_bytes & 15, packed_bytes >> 4], -1)


def _rows(numbers: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(numbers.reshape(len(numbers), -1))


def _q4_0(blocks: Bytes) -> Groups:
    scale = _half(blocks, 0)
    return Groups(_rows(_nibbles(blocks[..., 2:])), scale, -8 * scale)


def _q4_1(blocks: Bytes) -> Groups:
    return Groups(_rows(_nibbles(blocks[..., 4:])), _half(blocks, 0), _half(blocks, 2))


def _q5(blocks: Bytes, first: int) -> Bytes:
    """Numbers of 5 bits, of which the fifth ones of a block are the bits of one word."""
    fifth = np.unpackbits(blocks[..., first : first + 4], axis=-1, bitorder="little")
    return _rows(_nibbles(blocks[..., first + 4 :]) | fifth << 4)


def _q5_0(blocks: Bytes) -> Groups:
    scale = _half(blocks, 0)
    return Groups(_q5(blocks, 2), scale, -16 * scale)


def _q5_1(blocks: Bytes) -> Groups:
    return Groups(_q5(blocks, 4), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Bytes) -> Groups:
    return Groups(_rows(blocks[..., 2:] ^ 128), _half(blocks, 0), None)


def _q4_k(blocks: Bytes) -> Groups:
    scales, least = _k_scales(blocks)
    return Groups(
        _rows(_nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))), scales, least
    )


def _q5_k(blocks: Bytes) -> Groups:
    scales, least = _k_scales(blocks)
    lower = _nibbles(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32)).reshape(
        *blocks.shape[:2], 8, 32
    )
    fifth = blocks[..., 16:48][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return Groups(_rows(lower | fifth << 4), scales, least)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Eight scales and least values of 6 bits each, in 12 bytes."""
    low, middle, high = (blocks[..., first : first + 4] for first in (4, 8, 12))
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], -1)
    least = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], -1)
    of_scales, of_least = _half(blocks, 0)[..., None], _half(blocks, 2)[..., None]
    count = len(blocks)
    return (of_scales * scales).reshape(count, -1), -(of_least * least).reshape(count, -1)


def _q6_k(blocks: Bytes) -> Groups:
    shape = blocks.shape[:2]
    lower = _nibbles(blocks[..., :128].reshape(*shape, 2, 64)).reshape(*shape, 2, 4, 32)
    packed_upper = blocks[..., 128:192].reshape(*shape, 2, 1, 32)
    upper = packed_upper >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    scales = _half(blocks, 208)[..., None] * blocks[..., 192:208].view(np.int8)
    scales = scales.reshape(shape[0], -1)
    return Groups(_rows(lower | upper << 4), scales, -32 * scales)


_READERS: Mapping[str, tuple[int, Callable[[Bytes], Groups], bool]] = {
    "Q4_0": (18, _q4_0, True),
    "Q4_1": (20, _q4_1, True),
    "Q5_0": (22, _q5_0, True),
    "Q5_1": (24, _q5_1, True),
    "Q8_0": (34, _q8_0, True),
    "Q4_K": (144, _q4_k, False),
    "Q5_K": (176, _q5_k, False),
    "Q6_K": (210, _q6_k, False),
}
"""A block's bytes, what reads it, and whether its scales are exact in float16."""
GGUF_TYPES = tuple(_READERS)
