"""A host's copy of one request's committed tokens: soft state, checked by hash.

The coordinator's copy is authoritative. An order carries the length that it continues from and the
hash of all tokens before, so a host can check its own copy at once.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

EMPTY_HASH = 0


@dataclass(slots=True)
class CommittedTokens:
    """Token ids with the rolling hash of every prefix, so that any base can be checked."""

    ids: list[int] = field(default_factory=list)
    hashes: "array[int]" = field(default_factory=lambda: array("q", [EMPTY_HASH]))
    """hashes[n] is the hash of the first n tokens. An array, as Python's integers take six times
    the memory, and these hashes are most of what a server's memory grows by."""

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, tokens: Sequence[int]) -> None:
        hashes = self.hashes
        value = hashes[-1]
        for token in tokens:
            # Python's hash of a pair takes a third of the time of a product modulo a prime, and for
            # numbers it is the same in every process: only strings are salted.
            value = hash((value, token))
            hashes.append(value)
        self.ids += tokens

    def truncate(self, length: int) -> None:
        del self.ids[length:]
        del self.hashes[length + 1 :]

    def continues(self, base: int, base_hash: int) -> bool:
        """Whether this copy has the first `base` tokens, and they have that hash."""
        return base <= len(self) and self.hashes[base] == base_hash
