"""Mathematics that LLVM does not vectorise by itself, for compiled kernels."""

import numpy as np
from numba import njit

_MIN_EXPONENT, _MAX_EXPONENT = -126, 127
_EXPONENTS = np.arange(_MIN_EXPONENT, _MAX_EXPONENT + 1)
_POWERS_OF_TWO = np.ldexp(np.float32(1), _EXPONENTS).astype(np.float32)


@njit(cache=True, nogil=True, fastmath=True, inline="always")
def fast_exp(x: float) -> float:
    """exp to 2e-7 relative in fp32 (LLVM would call libm's scalar one): x = n·ln 2 + r.

    Below -87 it stays at e⁻⁸⁷, the smallest that fp32 holds in full precision.
    """
    clipped = np.float32(min(max(x, -87.0), 88.0))
    n = np.int32(np.floor(clipped * np.float32(1.44269504) + np.float32(0.5)))
    r = clipped - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    # Cephes' expf: a minimax polynomial on [-ln 2 / 2, ln 2 / 2].
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1.0)) * _POWERS_OF_TWO[n - _MIN_EXPONENT]
