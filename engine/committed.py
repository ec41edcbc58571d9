"""The committed tokens of one request, as a host holds them: soft state, checked by hash.

The coordinator owns the truth. An order says from which length it continues and what the hash
of everything before it is, so a host knows at once whether its own copy will do.
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
    """Of so many first tokens. As Python's integers they would take six times the memory, and a
    server's memory grows mostly by them."""

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, tokens: Sequence[int]) -> None:
        hashes = self.hashes
        value = hashes[-1]
        for token in tokens:
            # Python's own hash of a pair, in a third of the time that a product modulo a prime
            # takes. Of numbers it is the same in every process: only strings are salted.
            value = hash((value, token))
            hashes.append(value)
        self.ids += tokens

    def truncate(self, length: int) -> None:
        del self.ids[length:]
        del self.hashes[length + 1 :]

    def continues(self, base: int, base_hash: int) -> bool:
        """Whether the first `base` tokens are here and are the ones that the order means."""
        return base <= len(self) and self.hashes[base] == base_hash
