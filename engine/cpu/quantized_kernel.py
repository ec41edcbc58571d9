"""Products of quantized weights with rows of 8-bit numbers, as LLVM vector operations for numba.

Weights lie in tiles of 16 outputs. A tile holds one group of inputs after the other: the numbers,
whole and unsigned, then what they are scaled by and the least value of each output: weight =
scale · number + least. In 64 bytes lie four neighbouring inputs of each of the 16 outputs, as one
instruction of AVX-512 VNNI multiplies and adds them; 4-bit numbers take half of a byte, with the
first half of the group in the lower half of the bytes.

The products of numbers are whole, and the groups of a row are added in their order. So a row's
result has the same bits whatever other rows are computed with it, and on every processor that
rounds fused products once.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Signature
from numba.extending import intrinsic

from engine.attention.vector_ir import F32, I32, Arguments, call, filled, splat
from engine.cpu.dot_products import BYTES, INTS, OUTPUTS, QUAD, dot_of_this_processor

_ROWS = 4
"""That a tile is multiplied with at once, so that its numbers are unpacked once for all of them."""
SCALE_GROUP = 32
"""Inputs of a row that share a scale."""
_I16, _I64 = ir.IntType(16), ir.IntType(64)
_FLOATS = ir.VectorType(F32, OUTPUTS)
_HALVES = ir.VectorType(ir.HalfType(), OUTPUTS)


class Format(NamedTuple):
    """How the weights of a group are stored."""

    bits: int
    """The width of a number: 4 or 8."""
    group: int
    """Inputs that share a scale: 16 or 32."""
    half: bool
    """Whether scales and least values are float16, otherwise float32."""
    has_least: bool
    """Otherwise the least value is -128 scales."""

    @property
    def group_bytes(self) -> int:
        """What a group of a tile takes."""
        floats = OUTPUTS * (2 if self.half else 4) * (2 if self.has_least else 1)
        return OUTPUTS * self.group * self.bits // 8 + floats


_PRODUCT = types.void(*[types.intp] * 10)


@cache
def product_address(kind: Format) -> int:
    """The address of a compiled function, of which `call_product` has the arguments."""
    bits, group, half, has_least = (int(part) for part in kind)
    group_bytes = kind.group_bytes

    @cfunc(_PRODUCT, nopython=True, cache=True)
    def product(
        weights: int, first: int, end: int, groups: int,
        numbers: int, scales: int, sums: int, rows: int, out: int, stride: int,
    ) -> None:  # fmt: skip
        whole = rows // _ROWS * _ROWS
        width, scale_bytes = groups * group, groups * group // SCALE_GROUP * 4
        for tile in range(first, end):
            source, target = weights + tile * groups * group_bytes, out + tile * OUTPUTS * 4
            for row in range(0, whole, _ROWS):
                _multiply_tile(
                    bits, group, half, has_least, _ROWS,
                    source, groups, numbers + row * width, scales + row * scale_bytes,
                    sums + row * groups * 4, target + row * stride * 4, stride,
                )  # fmt: skip
            for row in range(whole, rows):
                _multiply_tile(
                    bits, group, half, has_least, 1,
                    source, groups, numbers + row * width, scales + row * scale_bytes,
                    sums + row * groups * 4, target + row * stride * 4, stride,
                )  # fmt: skip

    _alive.append(product)
    return int(product.address)


_alive: list[object] = []
"""Compiled functions, which are freed with their last reference."""


@intrinsic
def call_product(
    _typing: object,
    _address: types.Type,
    _weights: types.Type,
    _first: types.Type,
    _end: types.Type,
    _groups: types.Type,
    _numbers: types.Type,
    _scales: types.Type,
    _sums: types.Type,
    _rows: types.Type,
    _out: types.Type,
    _stride: types.Type,
) -> tuple[Signature, Callable[..., ir.Value]]:
    """Multiplies the tiles from `first` to `end` with rows of numbers, of which scales and sums
    stand beside: out[row, output] for `stride` outputs a row. All others are addresses."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * (len(arguments) - 1))
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 11), build


@intrinsic(prefer_literal=True)
def _multiply_tile(
    _typing: object,
    bits: types.IntegerLiteral,
    group: types.IntegerLiteral,
    half: types.IntegerLiteral,
    has_least: types.IntegerLiteral,
    rows: types.IntegerLiteral,
    _weights: types.Type,
    _groups: types.Type,
    _numbers: types.Type,
    _scales: types.Type,
    _sums: types.Type,
    _out: types.Type,
    _stride: types.Type,
) -> tuple[Signature, Callable[..., ir.Value]]:
    """Multiplies one tile with a fixed number of rows."""
    literals = (bits, group, half, has_least, rows)
    kind = Format(
        bits.literal_value,
        group.literal_value,
        bool(half.literal_value),
        bool(has_least.literal_value),
    )

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        _build_tile(builder, kind, rows.literal_value, arguments[len(literals) :])
        return context.get_dummy_value()

    return types.void(*literals, *[types.intp] * 7), build


def _build_tile(builder: ir.IRBuilder, kind: Format, count: int, arguments: Arguments) -> None:
    weights, groups, numbers, scales, sums, out, stride = arguments
    dot = dot_of_this_processor()
    none = filled(_FLOATS, 0.0)
    totals = [cgutils.alloca_once_value(builder, none) for _ in range(count)]
    width = builder.mul(groups, _I64(kind.group))
    row_scales = builder.udiv(width, _I64(SCALE_GROUP))
    with cgutils.for_range(builder, groups) as loop:
        group = loop.index
        block = _moved(builder, weights, group, kind.group_bytes)
        quads, scale, least = _unpacked(builder, kind, block)
        in_row = builder.udiv(builder.mul(group, _I64(kind.group)), _I64(SCALE_GROUP))
        for row, total in enumerate(totals):
            own = _moved(builder, numbers, builder.mul(width, _I64(row)), 1)
            own = _moved(builder, own, group, kind.group)
            products: ir.Value = filled(INTS, 0)
            for number, quad in enumerate(quads):
                four = _load(builder, _moved(builder, own, _I64(number), QUAD), I32, 4)
                products = dot(builder, products, quad, splat(builder, INTS, four), kind.bits)
            place = builder.add(builder.mul(row_scales, _I64(row)), in_row)
            factor = builder.fmul(scale, _spread_float(builder, scales, place))
            place = builder.add(builder.mul(groups, _I64(row)), group)
            both = _fma(builder, builder.sitofp(products, _FLOATS), factor, builder.load(total))
            both = _fma(builder, least, _spread_float(builder, sums, place), both)
            builder.store(both, total)
    for row, total in enumerate(totals):
        target = _moved(builder, out, builder.mul(stride, _I64(row)), 4)
        pointer = builder.inttoptr(target, _FLOATS.as_pointer())
        builder.store(builder.load(total), pointer, align=4)


def _spread_float(builder: ir.IRBuilder, floats: ir.Value, place: ir.Value) -> ir.Value:
    number = _load(builder, _moved(builder, floats, place, 4), F32, 4)
    return splat(builder, _FLOATS, number)


def _unpacked(
    builder: ir.IRBuilder, kind: Format, block: ir.Value
) -> tuple[list[ir.Value], ir.Value, ir.Value]:
    """The quads of a group, and each output's scale and least value."""
    loaded = kind.group * kind.bits // 8 // QUAD
    quads = [
        _load(builder, _moved(builder, block, _I64(number), BYTES.count), BYTES, 1)
        for number in range(loaded)
    ]
    if kind.bits == 4:
        lower = filled(BYTES, 15)
        words = ir.VectorType(_I16, BYTES.count // 2)  # no processor shifts single bytes
        four = filled(words, 4)
        upper = [builder.lshr(builder.bitcast(quad, words), four) for quad in quads]
        quads += [builder.bitcast(quad, BYTES) for quad in upper]
        quads = [builder.and_(quad, lower) for quad in quads]
    after = _moved(builder, block, _I64(loaded), BYTES.count)
    scale = _floats(builder, kind, after)
    if kind.has_least:
        after = _moved(builder, after, _I64(OUTPUTS), 2 if kind.half else 4)
        return quads, scale, _floats(builder, kind, after)
    return quads, scale, builder.fmul(scale, filled(_FLOATS, -128.0))


def _floats(builder: ir.IRBuilder, kind: Format, address: ir.Value) -> ir.Value:
    if kind.half:
        return builder.fpext(_load(builder, address, _HALVES, 1), _FLOATS)
    return _load(builder, address, _FLOATS, 1)


def _fma(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, total: ir.Value) -> ir.Value:
    return call(builder, "llvm.fma.v16f32", _FLOATS, [first, second, total])


def _moved(builder: ir.IRBuilder, address: ir.Value, count: ir.Value, size: int) -> ir.Value:
    """The address `count` items of `size` bytes further on."""
    return builder.add(address, builder.mul(count, _I64(size)))


def _load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, align: int) -> ir.Value:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)
