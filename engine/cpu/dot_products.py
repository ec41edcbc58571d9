"""The sum of four products of 8-bit numbers for each of 16 outputs, by the processor's own
instructions, as LLVM operations. All give the same whole numbers."""

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import config
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features

OUTPUTS, QUAD = 16, 4
"""Outputs, and the inputs that are multiplied and added for each."""

_I16, I32 = ir.IntType(16), ir.IntType(32)
BYTES, INTS = ir.VectorType(ir.IntType(8), OUTPUTS * QUAD), ir.VectorType(I32, OUTPUTS)

Values = Sequence[ir.Value]
Dot = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value, int], ir.Value]
"""(builder, totals [16], weights [64 bytes], the inputs' numbers in each of 16 words, bits of a
weight) → totals"""


def dot_of_this_processor() -> Dot:
    features = (config.CPU_FEATURES or get_host_cpu_features()).split(",")
    if "+avx512vnni" in features:
        return _vnni_dot
    return _avx2_dot if "+avx2" in features else _plain_dot


def _vnni_dot(
    builder: ir.IRBuilder, totals: ir.Value, weights: ir.Value, inputs: ir.Value, _bits: int
) -> ir.Value:
    words = builder.bitcast(weights, INTS)
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, [totals, words, inputs])


def _avx2_dot(
    builder: ir.IRBuilder, totals: ir.Value, weights: ir.Value, inputs: ir.Value, bits: int
) -> ir.Value:
    """Sums of two products have 16 bits, which two 8-bit weights would exceed: these are multiplied
    in two parts of 4 bits."""
    inputs = builder.bitcast(inputs, BYTES)
    halves = []
    for half in range(2):
        numbers, own = _half(builder, inputs, half), _half(builder, weights, half)
        if bits == 4:
            halves.append(_quad_sums(builder, own, numbers))
            continue
        lower = builder.and_(own, ir.Constant(own.type, [15] * own.type.count))
        upper = builder.lshr(own, ir.Constant(own.type, [4] * own.type.count))
        sums = _quad_sums(builder, upper, numbers)
        sums = builder.shl(sums, ir.Constant(sums.type, [4] * sums.type.count))
        halves.append(builder.add(sums, _quad_sums(builder, lower, numbers)))
    order = ir.Constant(INTS, list(range(OUTPUTS)))
    return builder.add(totals, builder.shuffle_vector(*halves, order))


def _quad_sums(builder: ir.IRBuilder, weights: ir.Value, numbers: ir.Value) -> ir.Value:
    pairs, quads = ir.VectorType(_I16, 16), ir.VectorType(I32, 8)
    of_two = call(builder, "llvm.x86.avx2.pmadd.ub.sw", pairs, [weights, numbers])
    ones = ir.Constant(pairs, [1] * pairs.count)
    return call(builder, "llvm.x86.avx2.pmadd.wd", quads, [of_two, ones])


def _plain_dot(
    builder: ir.IRBuilder, totals: ir.Value, weights: ir.Value, inputs: ir.Value, _bits: int
) -> ir.Value:
    """For other processors, without their own instructions."""
    wide = ir.VectorType(I32, BYTES.count)
    numbers = builder.sext(builder.bitcast(inputs, BYTES), wide)
    products = builder.mul(builder.zext(weights, wide), numbers)
    for place in range(QUAD):
        order = ir.Constant(INTS, list(range(place, BYTES.count, QUAD)))
        totals = builder.add(totals, builder.shuffle_vector(products, products, order))
    return totals


def call(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: Values) -> ir.Value:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _half(builder: ir.IRBuilder, vector: ir.Value, half: int) -> ir.Value:
    count = vector.type.count // 2
    order = [half * count + lane for lane in range(count)]
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, count), order))
