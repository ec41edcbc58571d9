"""One request's committed tokens, with hashes by which a host's copy is checked.

The coordinator's copy is authoritative. An order carries its base length and the hash of all tokens
before it, so that a host can check its own copy at once.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

EMPTY_HASH = 0


@dataclass(slots=True)
class CommittedTokens:
    """Token ids with the rolling hash of every prefix, so that any base length can be checked."""

    ids: list[int] = field(default_factory=list)
    hashes: "array[int]" = field(default_factory=lambda: array("q", [EMPTY_HASH]))
    """hashes[n] is the hash of the first n tokens. An array, because a list of Python integers
    takes six times the memory, and most of a server's growth in memory is these hashes."""

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, tokens: Sequence[int]) -> None:
        hashes = self.hashes
        value = hashes[-1]
        for token in tokens:
            # Python's hash of a pair takes a third of the time of a product modulo a prime. For
            # integers it is the same in every process; only strings are salted.
            value = hash((value, token))
            hashes.append(value)
        self.ids += tokens

    def truncate(self, length: int) -> None:
        del self.ids[length:]
        del self.hashes[length + 1 :]

    def continues(self, base: int, base_hash: int) -> bool:
        """Whether this copy has at least `base` tokens and the first `base` have this hash."""
        return base <= len(self) and self.hashes[base] == base_hash
