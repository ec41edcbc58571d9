"""An exponential that LLVM can vectorise in compiled kernels; libm's is scalar.

Without fastmath, as norm_kernels.py: what is rounded once is said in each place.
"""

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.typing import Signature
from numba.extending import intrinsic

from engine.attention.vector_ir import F32, Arguments, call

_LOG2_E = np.float32(1.44269504)
_MINUS_LN2_HIGH, _MINUS_LN2_LOW = np.float32(-0.693359375), np.float32(2.12194440e-4)
"""Their sum is -ln 2; products of the first with small whole numbers are exact."""
_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
_ONE, _HALF = np.float32(1.0), np.float32(0.5)


@intrinsic
def _fma(
    _typing: object, _first: types.Type, _second: types.Type, _term: types.Type
) -> tuple[Signature, Callable[..., ir.Value]]:
    """first · second + term, rounded once where the processor has a fused operation."""

    def build(_c: object, builder: ir.IRBuilder, _s: object, arguments: Arguments) -> ir.Value:
        return call(builder, "llvm.fmuladd.f32", F32, arguments)

    return types.float32(types.float32, types.float32, types.float32), build


@njit(cache=True, nogil=True)
def fast_exp(x: float) -> float:
    """exp in fp32 with a relative error of 1e-7, by x = n·ln 2 + r.

    Inputs below -87 give e⁻⁸⁷, about the smallest normal fp32 number.
    """
    clipped = min(max(np.float32(x), _LEAST), _MOST)
    n = np.floor(_fma(clipped, _LOG2_E, _HALF))
    r = _fma(n, _MINUS_LN2_LOW, _fma(n, _MINUS_LN2_HIGH, clipped))
    # Cephes' expf: a minimax polynomial on [-ln 2 / 2, ln 2 / 2].
    p = np.float32(1.9875691500e-4)
    p = _fma(p, r, np.float32(1.3981999507e-3))
    p = _fma(p, r, np.float32(8.3334519073e-3))
    p = _fma(p, r, np.float32(4.1665795894e-2))
    p = _fma(p, r, np.float32(1.6666665459e-1))
    p = _fma(p, r, np.float32(5.0000001201e-1))
    # 2ⁿ by its bits: the exponent, biased by 127, lies above 23 bits of mantissa.
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (_fma(p * r, r, r) + _ONE) * power
