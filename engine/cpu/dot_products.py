"""The sum of four products of 8-bit numbers for each of 16 outputs, by the processor's own
instructions, as LLVM operations. All give the same whole numbers."""

from collections.abc import Callable

from llvmlite import ir
from numba import config
from numba.core.codegen import get_host_cpu_features

from engine.attention.vector_ir import I32, call, filled, shuffled

OUTPUTS, QUAD = 16, 4
"""Outputs, and the inputs that are multiplied and added for each."""

_I16 = ir.IntType(16)
BYTES, INTS = ir.VectorType(ir.IntType(8), OUTPUTS * QUAD), ir.VectorType(I32, OUTPUTS)

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
        lower = builder.and_(own, filled(own.type, 15))
        upper = builder.lshr(own, filled(own.type, 4))
        sums = _quad_sums(builder, upper, numbers)
        sums = builder.shl(sums, filled(sums.type, 4))
        halves.append(builder.add(sums, _quad_sums(builder, lower, numbers)))
    return builder.add(totals, shuffled(builder, halves[0], halves[1], range(OUTPUTS)))


def _quad_sums(builder: ir.IRBuilder, weights: ir.Value, numbers: ir.Value) -> ir.Value:
    pairs, quads = ir.VectorType(_I16, 16), ir.VectorType(I32, 8)
    of_two = call(builder, "llvm.x86.avx2.pmadd.ub.sw", pairs, [weights, numbers])
    return call(builder, "llvm.x86.avx2.pmadd.wd", quads, [of_two, filled(pairs, 1)])


def _plain_dot(
    builder: ir.IRBuilder, totals: ir.Value, weights: ir.Value, inputs: ir.Value, _bits: int
) -> ir.Value:
    """For other processors, without their own instructions."""
    wide = ir.VectorType(I32, BYTES.count)
    numbers = builder.sext(builder.bitcast(inputs, BYTES), wide)
    products = builder.mul(builder.zext(weights, wide), numbers)
    for place in range(QUAD):
        own = shuffled(builder, products, products, range(place, BYTES.count, QUAD))
        totals = builder.add(totals, own)
    return totals


def _half(builder: ir.IRBuilder, vector: ir.Value, half: int) -> ir.Value:
    count = vector.type.count // 2
    return shuffled(builder, vector, vector, range(half * count, (half + 1) * count))
