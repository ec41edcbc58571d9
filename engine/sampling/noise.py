"""Counter-based Gumbel noise, a function of (seed, position, token) on any device.

With g = gumbel(seed, t, v) the target's token at position t is argmax_v(log p(v) + g(v)), an exact
draw from p that depends on neither batch, device, shard nor drafter. Drafters add the same noise to
their own distribution, which makes them agree with the target nearly as often as possible (Daliri,
Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding", 2024).
"""

from typing import TypeAlias

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

WORD = 0xFFFFFFFF
"""The largest 32-bit word, and the mask for one."""
DRAW_BITS = 24
"""The bits of a Philox word in a uniform draw: the precision of fp32."""
DRAW_STEP = 2.0**-DRAW_BITS
MAX_GUMBEL = 17.33
"""An upper bound of g: the largest draw gives 17.3287, the smallest -2.8524."""

# Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Table 2.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words: TypeAlias = int | NDArray[np.int64] | Tensor
"""32-bit words held in 64-bit integers: one, or an array or tensor of them."""


def philox(
    c0: Words, c1: Words, c2: Words, c3: Words, k0: Words, k1: Words
) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 of counter (c0, c1, c2, c3) under key (k0, k1).

    Uses only integer operators that Python, numpy, torch and numba share. A signed 64-bit product
    may wrap; the shift then fills with the sign, which the mask removes.
    """
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0 = ((product1 >> 32) & WORD) ^ c1 ^ k0
        c2 = ((product0 >> 32) & WORD) ^ c3 ^ k1
        c1 = product1 & WORD
        c3 = product0 & WORD
        k0 = (k0 + _WEYL_STEPS[0]) & WORD
        k1 = (k1 + _WEYL_STEPS[1]) & WORD
    return c0, c1, c2, c3


philox_njit = njit(philox, inline="always")
"""For numba kernels. Inlined into the caller's loop, which LLVM then vectorises (1.4 ns a token
instead of 7 ns as a call)."""


def split_seed(seed: int) -> tuple[int, int]:
    """A 64-bit seed as Philox's key: low word, high word."""
    return seed & WORD, seed >> 32


def gumbel(seed: int, position: int, token_ids: NDArray[np.integer]) -> NDArray[np.float32]:
    """The definition: g = -log(-log u), u = (top 24 bits of Philox's first word + 1/2) · 2⁻²⁴.

    In fp64, rounded once at the end: n + 1/2 has no fp32 form from n = 2²³ on, and u would be 1.
    """
    word = philox(position, token_ids.astype(np.int64), 0, 0, *split_seed(seed))[0]
    draw = np.asarray(word) >> (32 - DRAW_BITS)
    return gumbel_of_draw(draw)


def gumbel_of_draw(draw: NDArray[np.int64]) -> NDArray[np.float32]:
    """g of 24-bit draws, which increases with the draw."""
    uniform = (draw + 0.5) * DRAW_STEP
    return (-np.log(-np.log(uniform))).astype(np.float32)


def gumbel_torch(seed_low: Tensor, seed_high: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
    """`gumbel` in torch; the int64 arguments broadcast.

    fp64 logarithms may differ by an ulp between libraries. For numpy, numba and torch on a CPU the
    fp32 results are equal for all 2²⁴ draws; on other devices a few may differ by one fp32 step.
    """
    word = philox(position, tokens, 0, 0, seed_low, seed_high)[0]
    draw = torch.as_tensor(word) >> (32 - DRAW_BITS)
    uniform = (draw.double() + 0.5) * DRAW_STEP
    return (-torch.log(-torch.log(uniform))).float()
