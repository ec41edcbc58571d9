"""Compiled kernels for the norms and rotary positions between the linear layers.

Rows are passed as the bits of their numbers. A bfloat16 is the upper half of an fp32, so the
conversion is an exact shift. Everything is computed in fp32 and rounded once.

Without fastmath: under it LLVM chooses the order of a sum, and chose another where a loop that
calls these was compiled than where it was read from the cache, so that two replicas differed.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bits = NDArray[np.int16] | NDArray[np.int32]
_SUMS = 16
"""That are added side by side, as a vector."""


@njit(fastmath=False, cache=True, nogil=True, inline="always")
def _read(stored: Bits, bits: NDArray[np.int32]) -> None:
    shift = 32 - 8 * stored.itemsize
    for e in range(len(bits)):
        bits[e] = np.int32(stored[e]) << shift


@njit(fastmath=False, cache=True, nogil=True, inline="always")
def _write(bits: NDArray[np.int32], stored: Bits) -> None:
    """Rounds to nearest, ties to even."""
    if stored.itemsize == bits.itemsize:
        for e in range(len(bits)):
            stored[e] = bits[e]
    else:
        for e in range(len(bits)):
            stored[e] = (bits[e] + 0x7FFF + ((bits[e] >> 16) & 1)) >> 16


@njit(fastmath=False, cache=True, nogil=True, inline="always")
def _normalise(vector: Floats, weight: Floats, epsilon: float) -> None:
    sums = np.zeros(_SUMS, np.float32)
    for first in range(0, len(vector), _SUMS):
        for e in range(first, min(first + _SUMS, len(vector))):
            sums[e - first] += vector[e] * vector[e]
    squares = np.float32(0.0)
    for e in range(_SUMS):
        squares += sums[e]
    scale = np.float32(1.0) / np.sqrt(squares / np.float32(len(vector)) + np.float32(epsilon))
    for e in range(len(vector)):
        vector[e] *= scale * weight[e]


@njit(fastmath=False, cache=True, nogil=True)
def rms_norm(rows: Bits, weight: Floats, epsilon: float, normed: Bits) -> None:
    """rows and normed [n, width]"""
    bits = np.empty(rows.shape[1], np.int32)
    vector = bits.view(np.float32)
    for row in range(len(rows)):
        _read(rows[row], bits)
        _normalise(vector, weight, epsilon)
        _write(bits, normed[row])


@njit(fastmath=False, cache=True, nogil=True)
def rotate(heads: Bits, norms: Floats, epsilon: float, cos: Floats, sin: Floats) -> None:
    """Normalises the first heads of each row and rotates them by its position, in place.

    heads [rows, heads, width], cos and sin [rows, width]; norms [heads to rotate, width], of width
    0 for families without head norms. Element e is rotated with element e + width / 2.
    """
    width = heads.shape[2]
    half = width // 2
    bits = np.empty(width, np.int32)
    vector = bits.view(np.float32)
    for row in range(heads.shape[0]):
        for head in range(norms.shape[0]):
            _read(heads[row, head], bits)
            if norms.shape[1]:
                _normalise(vector, norms[head], epsilon)
            for e in range(half):
                low, high = vector[e], vector[e + half]
                vector[e] = low * cos[row, e] - high * sin[row, e]
                vector[e + half] = high * cos[row, e + half] + low * sin[row, e + half]
            _write(bits, heads[row, head])
