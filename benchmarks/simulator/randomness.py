"""Randomness by name: the same numbers for the same key, whoever asks, when, and how often.

So every policy meets the same requests, which are as easy or as hard at the same positions.
"""

from hashlib import blake2b

from numpy.random import Generator, Philox

BLOCK = 256
"""Positions are drawn so many at a time."""


def generator(*key: int | str) -> Generator:
    name = "\x1f".join(map(str, key)).encode()
    return Generator(Philox(key=int.from_bytes(blake2b(name, digest_size=16).digest(), "little")))
