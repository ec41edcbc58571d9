"""Vectors of 32 fp32 numbers for numba kernels, written as LLVM vector operations, which LLVM maps
to the widest registers of the processor.

LLVM's own vectoriser would load bfloat16 number by number and sum the products of one pair of rows
at a time. A vector loaded from bfloat16 (held as int16) has first the even elements, then the odd
ones, as each half then takes one operation on 32-bit words. `store` restores the order, and no
operation in between depends on it. float16 is held as uint16, and has the order of its elements, as
fp32 has: what is multiplied with bfloat16 must be bfloat16 itself.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.typing import Signature
from numba.extending import intrinsic, models, register_model

LANES = 32

_BYTE, _I32, _F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()
_FLOATS, _BITS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
_WORDS = ir.VectorType(_I32, LANES // 2)
"""Two bfloat16 each, the even element in the lower half."""
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_SHORTS, _HALVES = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.HalfType(), LANES)
_STORED = {types.float32: _FLOATS, types.int16: _SHORTS, types.uint16: _SHORTS}
_NAMES = {types.float32: "v32f32", types.int16: "v32i16", types.uint16: "v32i16"}
"""These vectors' suffix in the names of LLVM's operations."""

Lowering = tuple[Signature, Callable[..., ir.Value]]
"""An intrinsic for numba: its signature, and the function that builds its code."""
Arguments = Sequence[ir.Value]


class _VectorType(types.Type):
    def __init__(self) -> None:
        super().__init__("Vector")


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: object, vector: _VectorType) -> None:
        super().__init__(manager, vector, _FLOATS)


_VECTOR = _VectorType()


@intrinsic
def zeros(_typing: object) -> Lowering:
    def build(_c: object, _builder: ir.IRBuilder, _s: object, _arguments: Arguments) -> ir.Value:
        return _FLOATS(None)

    return _VECTOR(), build


@intrinsic
def spread(_typing: object, _number: types.Type) -> Lowering:
    """One number in every lane."""

    def build(_c: object, builder: ir.IRBuilder, _s: object, arguments: Arguments) -> ir.Value:
        return _splat(builder, _FLOATS, arguments[0])

    return _VECTOR(types.float32), build


@intrinsic
def fma(_typing: object, _first: types.Type, _second: types.Type, _term: types.Type) -> Lowering:
    """first · second + term, rounded once where the processor has a fused operation."""

    def build(_c: object, builder: ir.IRBuilder, _s: object, arguments: Arguments) -> ir.Value:
        return _call(builder, "llvm.fmuladd.v32f32", _FLOATS, arguments)

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
        return _call(builder, "llvm.vector.reduce.fmax.v32f32", _F32, arguments)

    return types.float32(_VECTOR), build


@intrinsic
def exact_sum(_typing: object, array: types.Array, _i: types.Type, _j: types.Type) -> Lowering:
    """The sum of array[i, j], of whole vectors of fp32 numbers from 0 to 1, each rounded to a
    multiple of 2^-36. In float64 such sums are exact up to 2^16, so that zeros in between and the
    order change no bit. Not for functions with fastmath."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        total = cgutils.alloca_once_value(builder, _DOUBLES(None))
        structure = context.make_array(array)(context, builder, arguments[0])
        width = cgutils.unpack_tuple(builder, structure.shape, 3)[2]
        step = width.type(LANES)
        with cgutils.for_range_slice(builder, width.type(0), width, step, width.type) as (k, _):
            pointer = _pointer(context, builder, array, [*arguments, k], _FLOATS)
            numbers = builder.fpext(builder.load(pointer, align=4), _DOUBLES)
            shift = _all(_DOUBLES, 1.5 * 2**16)  # beside it, the last bit is worth 2^-36
            rounded = builder.fsub(builder.fadd(numbers, shift), shift)
            builder.store(builder.fadd(builder.load(total), rounded), total)
        sums = builder.load(total)
        while sums.type.count > 1:
            sums = _folded(builder, sums)
        return builder.extract_element(sums, _I32(0))

    return types.float64(array, types.intp, types.intp), build


@intrinsic
def load(
    _typing: object, array: types.Array, _i: types.Type, _j: types.Type, _k: types.Type
) -> Lowering:
    """array[i, j, k : k + LANES], with zeros after the end of the row."""
    stored, alignment = _STORED[array.dtype], _I32(array.dtype.bitwidth // 8)

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        pointer = _pointer(context, builder, array, arguments, stored)
        remaining = _remaining(context, builder, array, arguments)
        with builder.if_else(_is_whole(builder, remaining)) as (whole, part):
            with whole:
                whole_vector = builder.load(pointer, align=alignment.constant)
                whole_block = builder.block
            with part:
                mask = _first_lanes(builder, remaining)
                operation = f"llvm.masked.load.{_NAMES[array.dtype]}.p0"
                part_vector = _call(
                    builder, operation, stored, [pointer, alignment, mask, stored(None)]
                )
                part_block = builder.block
        numbers = builder.phi(stored)
        numbers.add_incoming(whole_vector, whole_block)
        numbers.add_incoming(part_vector, part_block)
        return _as_floats(builder, array, numbers)

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
    stored, alignment = _STORED[array.dtype], _I32(array.dtype.bitwidth // 8)

    def build(
        context: BaseContext, builder: ir.IRBuilder, _s: object, arguments: Arguments
    ) -> ir.Value:
        *place, numbers = arguments
        pointer = _pointer(context, builder, array, place, stored)
        remaining = _remaining(context, builder, array, place)
        numbers = _as_stored(builder, array, numbers)
        with builder.if_else(_is_whole(builder, remaining)) as (whole, part):
            with whole:
                builder.store(numbers, pointer, align=alignment.constant)
            with part:
                mask = _first_lanes(builder, remaining)
                operation = f"llvm.masked.store.{_NAMES[array.dtype]}.p0"
                _call(builder, operation, ir.VoidType(), [numbers, pointer, alignment, mask])
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
        v0, v1, v2, v3 = (_folded(builder, vector) for vector in arguments[4:])
        # Interleaves the vectors number by number, then in pairs, so that each addition serves
        # two vectors; then halves the result until one number per sum is left.
        pairs = (_interleaved_sum(builder, v0, v1, 1), _interleaved_sum(builder, v2, v3, 1))
        sums = _interleaved_sum(builder, *pairs, 2)
        while sums.type.count > 4:
            sums = _folded(builder, sums)
        builder.store(sums, _pointer(context, builder, array, arguments[:4], sums.type), align=4)
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
        pointer = _pointer(context, builder, array, arguments, _BYTE)
        to_read, second_level, data = _I32(0), _I32(2), _I32(1)
        hints = [to_read, second_level, data]
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, *hints])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp), build


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: Arguments) -> ir.Value:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _pointer(
    context: BaseContext,
    builder: ir.IRBuilder,
    array: types.Array,
    place: Arguments,
    pointee: ir.Type,
) -> ir.Value:
    """A pointer to `place`, an array and its three indices."""
    structure = context.make_array(array)(context, builder, place[0])
    pointer = cgutils.get_item_pointer(context, builder, array, structure, list(place[1:]))
    return builder.bitcast(pointer, pointee.as_pointer())


def _remaining(
    context: BaseContext, builder: ir.IRBuilder, array: types.Array, place: Arguments
) -> ir.Value:
    """The number of elements from place to the end of its row."""
    structure = context.make_array(array)(context, builder, place[0])
    width = cgutils.unpack_tuple(builder, structure.shape, 3)[2]
    return builder.trunc(builder.sub(width, place[3]), _I32)


def _is_whole(builder: ir.IRBuilder, remaining: ir.Value) -> ir.Value:
    return builder.icmp_signed(">=", remaining, _I32(LANES))


def _first_lanes(builder: ir.IRBuilder, count: ir.Value) -> ir.Value:
    lanes = ir.Constant(_BITS, list(range(LANES)))
    return builder.icmp_signed("<", lanes, _splat(builder, _BITS, count))


def _splat(builder: ir.IRBuilder, kind: ir.VectorType, number: ir.Value) -> ir.Value:
    first = builder.insert_element(kind(ir.Undefined), number, _I32(0))
    return _shuffled(builder, first, first, [0] * LANES)


def _shuffled(
    builder: ir.IRBuilder, first: ir.Value, second: ir.Value, order: Sequence[int]
) -> ir.Value:
    """The elements `order` of both vectors, where the second's indices follow the first's."""
    indices = ir.Constant(ir.VectorType(_I32, len(order)), list(order))
    return builder.shuffle_vector(first, second, indices)


def _all(kind: ir.VectorType, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count)


def _as_floats(builder: ir.IRBuilder, array: types.Array, stored: ir.Value) -> ir.Value:
    if array.dtype == types.uint16:
        return builder.fpext(builder.bitcast(stored, _HALVES), _FLOATS)
    return _widened(builder, stored) if array.dtype == types.int16 else stored


def _as_stored(builder: ir.IRBuilder, array: types.Array, numbers: ir.Value) -> ir.Value:
    if array.dtype == types.uint16:
        # The largest float16 stands for all above it: an infinite key would be no number times 0.
        most = [_all(_FLOATS, 65504.0), _all(_FLOATS, -65504.0)]
        for bound, above in zip(most, "<>", strict=True):
            beyond = builder.fcmp_ordered(above, bound, numbers)
            numbers = builder.select(beyond, bound, numbers)
        return builder.bitcast(builder.fptrunc(numbers, _HALVES), _SHORTS)
    return _rounded(builder, numbers) if array.dtype == types.int16 else numbers


def _widened(builder: ir.IRBuilder, stored: ir.Value) -> ir.Value:
    """bfloat16 to fp32, of which it is the upper half."""
    words = builder.bitcast(stored, _WORDS)
    even = builder.shl(words, _all(_WORDS, 16))
    odd = builder.and_(words, _all(_WORDS, 0xFFFF0000))
    return builder.bitcast(_shuffled(builder, even, odd, range(LANES)), _FLOATS)


def _rounded(builder: ir.IRBuilder, numbers: ir.Value) -> ir.Value:
    bits = builder.bitcast(numbers, _BITS)
    is_odd = builder.and_(builder.lshr(bits, _all(_BITS, 16)), _all(_BITS, 1))
    bits = builder.add(bits, builder.add(is_odd, _all(_BITS, 0x7FFF)))
    even = _shuffled(builder, bits, bits, range(LANES // 2))
    odd = _shuffled(builder, bits, bits, range(LANES // 2, LANES))
    lower = builder.lshr(even, _all(_WORDS, 16))
    upper = builder.and_(odd, _all(_WORDS, 0xFFFF0000))
    return builder.bitcast(builder.or_(lower, upper), _STORED[types.int16])


def _folded(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The sum of a vector's lower and upper half."""
    count = vector.type.count
    lower = _shuffled(builder, vector, vector, range(count // 2))
    return builder.fadd(lower, _shuffled(builder, vector, vector, range(count // 2, count)))


def _interleaved_sum(
    builder: ir.IRBuilder, first: ir.Value, second: ir.Value, run: int
) -> ir.Value:
    """The sums of neighbouring runs of `run` numbers, alternately of the first and the second."""
    count = first.type.count
    starts = range(0, count, 2 * run)
    of_first = [[*range(start, start + run)] for start in starts]
    order = [index for part in of_first for index in (*part, *(count + i for i in part))]
    lower = _shuffled(builder, first, second, order)
    upper = _shuffled(builder, first, second, [index + run for index in order])
    return builder.fadd(lower, upper)
