"""The committed tokens of one request, as a host holds them: soft state, checked by hash.

The coordinator owns the truth. An order says from which length it continues and what the hash
of everything before it is, so a host knows at once whether its own copy will do.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

HASH_PRIME = (1 << 61) - 1
HASH_BASE = 0x1F3D_5B79_A6C8_E24D % HASH_PRIME
EMPTY_HASH = 0


@dataclass(slots=True)
class CommittedTokens:
    """Token ids with the rolling hash of every prefix, so that any base can be checked."""

    ids: list[int] = field(default_factory=list)
    _hashes: list[int] = field(default_factory=lambda: [EMPTY_HASH])

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, tokens: Iterable[int]) -> None:
        ids, hashes = self.ids, self._hashes
        value = hashes[-1]
        for token in tokens:
            # A rolling hash; a token of 0 still counts.
            value = (value * HASH_BASE + token + 1) % HASH_PRIME
            ids.append(token)
            hashes.append(value)

    def truncate(self, length: int) -> None:
        del self.ids[length:]
        del self._hashes[length + 1 :]

    def hash_at(self, length: int) -> int:
        return self._hashes[length]

    def continues(self, base: int, base_hash: int) -> bool:
        """Whether the first `base` tokens are here and are the ones that the order means."""
        return base <= len(self) and self._hashes[base] == base_hash
