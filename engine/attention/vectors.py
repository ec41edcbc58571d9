"""Vectors of 32 fp32 numbers for numba kernels, written as LLVM vector operations, which LLVM maps
to the widest registers of the processor.

LLVM's own vectoriser would load bfloat16 number by number and sum the products of one pair of rows
at a time. A vector loaded from bfloat16 (held as int16) has first the even elements, then the odd
ones, as each half then takes one operation on 32-bit words. `store` restores the order, and no
operation in between depends on it. float16 is held as uint16, and has the order of its elements, as
fp32 has: what is multiplied with bfloat16 must be bfloat16 itself.
"""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Signature
from numba.extending import intrinsic, models, register_model

from engine.attention.vector_ir import (
    BYTE,
    DOUBLES,
    F32,
    FLOATS,
    I32,
    LANES,
    NAMES,
    STORED,
    Arguments,
    as_floats,
    as_stored,
    call,
    filled,
    first_lanes,
    folded,
    interleaved_sum,
    is_whole,
    pointer_to,
    remaining_from,
    splat,
)

Lowering = tuple[Signature, Callable[..., ir.Value]]
"""An intrinsic for numba: its signature, and the function that builds its code."""


class _VectorType(types.Type):
    def __init__(self) -> None:
        super().__init__("Vector")


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: object, vector: _VectorType) -> None:
        super().__init__(manager, vector, FLOATS)


_VECTOR = _VectorType()


@intrinsic
def zeros(_typing: object) -> Lowering:
    def build(_c: object, _builder: ir.IRBuilder, _s: object, _arguments: Arguments) -> ir.Value:
        return FLOATS(None)

    return _VECTOR(), build


@intrinsic
def spread(_typing: object, _number: types.Type) -> Lowering:
    """One number in every lane."""

    def build(_c: object, builder: ir.IRBuilder, _s: object, arguments: Arguments) -> ir.Value:
        return splat(builder, FLOATS, arguments[0])

    return _VECTOR(types.float32), build


@intrinsic
def fma(_typing: object, _first: types.Type, _second: types.Type, _term: types.Type) -> Lowering:
    """first · second + term, rounded once where the processor has a fused operation."""

    def build(_c: object, builder: ir.IRBuilder, _s: object, arguments: Arguments) -> ir.Value:
        return call(builder, "llvm.fmuladd.v32f32", FLOATS, arguments)

    return _VECTOR(_VECTOR, _VECTOR, _VECTOR), build


@intrinsic
def maximum(_typing: object, _first: types.Type, _second: types.Type) -> Lowering:
    def build(_c: object, builder: ir.IRBuilder, _s: object, arguments: Arguments) -> ir.Value:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return _VECTOR(_VECTOR, _VECTOR), build


@intrinsic
def largest(_typing: object, _vector: types.Type) -> Lowering:
    """The largest of a vector's numbers."""

    def build(_c: object, builder: ir.IRBuilder, _s: object, arguments: Arguments) -> ir.Value:
        return call(builder, "llvm.vector.reduce.fmax.v32f32", F32, arguments)

    return types.float32(_VECTOR), build


@intrinsic
def exact_sum(_typing: object, array: types.Array, _i: types.Type, _j: types.Type) -> Lowering:
    """The sum of array[i, j], of whole vectors of fp32 numbers from 0 to 1, each rounded to a
    multiple of 2^-36. In float64 such sums are exact up to 2^16, so that zeros in between and the
    order change no bit. Not for functions with fastmath."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        total = cgutils.alloca_once_value(builder, DOUBLES(None))
        structure = context.make_array(array)(context, builder, arguments[0])
        width = cgutils.unpack_tuple(builder, structure.shape, 3)[2]
        step = width.type(LANES)
        with cgutils.for_range_slice(builder, width.type(0), width, step, width.type) as (k, _):
            pointer = pointer_to(context, builder, array, [*arguments, k], FLOATS)
            numbers = builder.fpext(builder.load(pointer, align=4), DOUBLES)
            shift = filled(DOUBLES, 1.5 * 2**16)  # beside it, the last bit is worth 2^-36
            rounded = builder.fsub(builder.fadd(numbers, shift), shift)
            builder.store(builder.fadd(builder.load(total), rounded), total)
        sums = builder.load(total)
        while sums.type.count > 1:
            sums = folded(builder, sums)
        return builder.extract_element(sums, I32(0))

    return types.float64(array, types.intp, types.intp), build


@intrinsic
def load(
    _typing: object, array: types.Array, _i: types.Type, _j: types.Type, _k: types.Type
) -> Lowering:
    """array[i, j, k : k + LANES], with zeros after the end of the row."""
    stored, alignment = STORED[array.dtype], I32(array.dtype.bitwidth // 8)

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        pointer = pointer_to(context, builder, array, arguments, stored)
        remaining = remaining_from(context, builder, array, arguments)
        with builder.if_else(is_whole(builder, remaining)) as (whole, part):
            with whole:
                whole_vector = builder.load(pointer, align=alignment.constant)
                whole_block = builder.block
            with part:
                mask = first_lanes(builder, remaining)
                operation = f"llvm.masked.load.{NAMES[array.dtype]}.p0"
                part_vector = call(
                    builder, operation, stored, [pointer, alignment, mask, stored(None)]
                )
                part_block = builder.block
        numbers = builder.phi(stored)
        numbers.add_incoming(whole_vector, whole_block)
        numbers.add_incoming(part_vector, part_block)
        return as_floats(builder, array, numbers)

    return _VECTOR(array, types.intp, types.intp, types.intp), build


@intrinsic
def store(
    _typing: object,
    array: types.Array,
    _i: types.Type,
    _j: types.Type,
    _k: types.Type,
    _vector: types.Type,
) -> Lowering:
    """array[i, j, k : k + LANES] = vector up to the end of the row; rounds to nearest even."""
    stored, alignment = STORED[array.dtype], I32(array.dtype.bitwidth // 8)

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        *place, numbers = arguments
        pointer = pointer_to(context, builder, array, place, stored)
        remaining = remaining_from(context, builder, array, place)
        numbers = as_stored(builder, array, numbers)
        with builder.if_else(is_whole(builder, remaining)) as (whole, part):
            with whole:
                builder.store(numbers, pointer, align=alignment.constant)
            with part:
                mask = first_lanes(builder, remaining)
                operation = f"llvm.masked.store.{NAMES[array.dtype]}.p0"
                call(builder, operation, ir.VoidType(), [numbers, pointer, alignment, mask])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp, _VECTOR), build


@intrinsic
def store_sums(
    _typing: object,
    array: types.Array,
    _i: types.Type,
    _j: types.Type,
    _k: types.Type,
    _v0: types.Type,
    _v1: types.Type,
    _v2: types.Type,
    _v3: types.Type,
) -> Lowering:
    """array[i, j, k : k + 4] = the sums of four vectors' numbers; array is fp32."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        v0, v1, v2, v3 = (folded(builder, vector) for vector in arguments[4:])
        # Interleaves the vectors number by number, then in pairs, so that each addition serves
        # two vectors; then halves the result until one number per sum is left.
        pairs = (interleaved_sum(builder, v0, v1, 1), interleaved_sum(builder, v2, v3, 1))
        sums = interleaved_sum(builder, *pairs, 2)
        while sums.type.count > 4:
            sums = folded(builder, sums)
        builder.store(sums, pointer_to(context, builder, array, arguments[:4], sums.type), align=4)
        return context.get_dummy_value()

    indices, vectors = [types.intp] * 3, [_VECTOR] * 4
    return types.void(array, *indices, *vectors), build


@intrinsic
def prefetch(
    _typing: object, array: types.Array, _i: types.Type, _j: types.Type, _k: types.Type
) -> Lowering:
    """Prefetches array[i, j, k] into the second-level cache."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        pointer = pointer_to(context, builder, array, arguments, BYTE)
        to_read, second_level, data = I32(0), I32(2), I32(1)
        hints = [to_read, second_level, data]
        call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *hints])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp), build
