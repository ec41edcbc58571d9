"""Random generators by key: the same key gives the same numbers, independent of any other use.

So every policy gets the same requests with the same acceptance at the same positions.
"""

from hashlib import blake2b

from numpy.random import Generator, Philox

BLOCK = 256
"""Positions that are drawn at once."""


def generator(*key: int | str) -> Generator:
    name = "\x1f".join(map(str, key)).encode()
    return Generator(Philox(key=int.from_bytes(blake2b(name, digest_size=16).digest(), "little")))
