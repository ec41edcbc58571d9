"""What the vectors of vectors.py are made of: LLVM's types, and functions that build its code."""

from collections.abc import Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext

LANES = 32

BYTE, I32, F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()
FLOATS, BITS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
WORDS = ir.VectorType(I32, LANES // 2)
"""Two bfloat16 each, the even element in the lower half."""
DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
SHORTS, HALVES = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.HalfType(), LANES)
STORED = {types.float32: FLOATS, types.int16: SHORTS, types.uint16: SHORTS}
NAMES = {types.float32: "v32f32", types.int16: "v32i16", types.uint16: "v32i16"}
"""These vectors' suffix in the names of LLVM's operations."""
Arguments = Sequence[ir.Value]


def call(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: Arguments) -> ir.Value:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def pointer_to(
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


def remaining_from(
    context: BaseContext, builder: ir.IRBuilder, array: types.Array, place: Arguments
) -> ir.Value:
    """The number of elements from place to the end of its row."""
    structure = context.make_array(array)(context, builder, place[0])
    width = cgutils.unpack_tuple(builder, structure.shape, 3)[2]
    return builder.trunc(builder.sub(width, place[3]), I32)


def is_whole(builder: ir.IRBuilder, remaining: ir.Value) -> ir.Value:
    return builder.icmp_signed(">=", remaining, I32(LANES))


def first_lanes(builder: ir.IRBuilder, count: ir.Value) -> ir.Value:
    lanes = ir.Constant(BITS, list(range(LANES)))
    return builder.icmp_signed("<", lanes, splat(builder, BITS, count))


def splat(builder: ir.IRBuilder, kind: ir.VectorType, number: ir.Value) -> ir.Value:
    first = builder.insert_element(kind(ir.Undefined), number, I32(0))
    return shuffled(builder, first, first, [0] * kind.count)


def shuffled(
    builder: ir.IRBuilder, first: ir.Value, second: ir.Value, order: Sequence[int]
) -> ir.Value:
    """The elements `order` of both vectors, where the second's indices follow the first's."""
    indices = ir.Constant(ir.VectorType(I32, len(order)), list(order))
    return builder.shuffle_vector(first, second, indices)


def filled(kind: ir.VectorType, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count)


def as_floats(builder: ir.IRBuilder, array: types.Array, stored: ir.Value) -> ir.Value:
    if array.dtype == types.uint16:
        return builder.fpext(builder.bitcast(stored, HALVES), FLOATS)
    return widened(builder, stored) if array.dtype == types.int16 else stored


def as_stored(builder: ir.IRBuilder, array: types.Array, numbers: ir.Value) -> ir.Value:
    if array.dtype == types.uint16:
        # The largest float16 stands for all above it: an infinite key would be no number times 0.
        most = [filled(FLOATS, 65504.0), filled(FLOATS, -65504.0)]
        for bound, above in zip(most, "<>", strict=True):
            beyond = builder.fcmp_ordered(above, bound, numbers)
            numbers = builder.select(beyond, bound, numbers)
        return builder.bitcast(builder.fptrunc(numbers, HALVES), SHORTS)
    return rounded(builder, numbers) if array.dtype == types.int16 else numbers


def widened(builder: ir.IRBuilder, stored: ir.Value) -> ir.Value:
    """bfloat16 to fp32, of which it is the upper half."""
    words = builder.bitcast(stored, WORDS)
    even = builder.shl(words, filled(WORDS, 16))
    odd = builder.and_(words, filled(WORDS, 0xFFFF0000))
    return builder.bitcast(shuffled(builder, even, odd, range(LANES)), FLOATS)


def rounded(builder: ir.IRBuilder, numbers: ir.Value) -> ir.Value:
    bits = builder.bitcast(numbers, BITS)
    is_odd = builder.and_(builder.lshr(bits, filled(BITS, 16)), filled(BITS, 1))
    bits = builder.add(bits, builder.add(is_odd, filled(BITS, 0x7FFF)))
    even = shuffled(builder, bits, bits, range(LANES // 2))
    odd = shuffled(builder, bits, bits, range(LANES // 2, LANES))
    lower = builder.lshr(even, filled(WORDS, 16))
    upper = builder.and_(odd, filled(WORDS, 0xFFFF0000))
    return builder.bitcast(builder.or_(lower, upper), STORED[types.int16])


def folded(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The sum of a vector's lower and upper half."""
    count = vector.type.count
    lower = shuffled(builder, vector, vector, range(count // 2))
    return builder.fadd(lower, shuffled(builder, vector, vector, range(count // 2, count)))


def interleaved_sum(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, run: int) -> ir.Value:
    """The sums of neighbouring runs of `run` numbers, alternately of the first and the second."""
    count = first.type.count
    starts = range(0, count, 2 * run)
    of_first = [[*range(start, start + run)] for start in starts]
    order = [index for part in of_first for index in (*part, *(count + i for i in part))]
    lower = shuffled(builder, first, second, order)
    upper = shuffled(builder, first, second, [index + run for index in order])
    return builder.fadd(lower, upper)
