"""SplitMix64: derives a seed for each choice of a request with several (`n`).

Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
"""

from policies.ranges import DRAWN_SEED_BITS

_WORD = 0xFFFF_FFFF_FFFF_FFFF
_WORD_BITS = 64
_GOLDEN_GAMMA = 0x9E37_79B9_7F4A_7C15


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of several: as many leading bits of SplitMix64's output as every
    language's JSON numbers hold exactly, so that a client can send it again."""
    return splitmix64(seed, index) >> (_WORD_BITS - DRAWN_SEED_BITS)


def splitmix64(seed: int, index: int) -> int:
    """Output number `index`, from 0, of the generator with this seed."""
    mixed = (seed + (index + 1) * _GOLDEN_GAMMA) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _WORD
    return mixed ^ (mixed >> 31)
