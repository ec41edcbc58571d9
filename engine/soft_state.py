"""The committed tokens that a host keeps between orders: soft state, which can be rebuilt from
orders at any time.

The coordinator's copy is authoritative. An order carries its base length and the hash of all tokens
before it, so that a host can check its own copy at once. Every drafter and verifier keeps its
requests' committed tokens here, and uses `unchanged` and `on_drop` to keep its own structures (an
n-gram index, KV rows) consistent with them.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.protocol import Missing, Prefix, Start

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


@dataclass(slots=True)
class HeldRequest:
    """The host's copy of one request, as of the newest order."""

    start: Start
    committed: CommittedTokens = field(default_factory=CommittedTokens)
    unchanged: int = 0
    """The number of leading committed tokens that the newest order did not change. Structures
    derived from the tokens must be truncated to min(their own length, this)."""


class SoftState:
    """Committed tokens of at most `max_requests` requests; the least recently used are evicted."""

    def __init__(self, max_requests: int, on_drop: Callable[[str, HeldRequest], None]) -> None:
        """`on_drop` is called with each request that is evicted or forgotten, and its state."""
        self._max_requests = max_requests
        self._on_drop = on_drop
        self._held: dict[str, HeldRequest] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[str]:
        """The requests, least recently used first."""
        return iter(self._held)

    def __contains__(self, request: str) -> bool:
        return request in self._held

    def __getitem__(self, request: str) -> HeldRequest:
        return self._held[request]

    def accept(self, prefixes: Sequence[Prefix]) -> list[HeldRequest | Missing]:
        """Updates the state to a batch of orders, none of which evicts another one's request."""
        answers = [self._follow(prefix) for prefix in prefixes]
        surplus = len(self._held) - max(self._max_requests, len(prefixes))
        self.forget(list(self._held)[: max(0, surplus)])
        return answers

    def forget(self, requests: Iterable[str]) -> None:
        """Drops these requests; unknown ones are ignored."""
        for request in requests:
            held = self._held.pop(request, None)
            if held is not None:
                self._on_drop(request, held)

    def _follow(self, prefix: Prefix) -> HeldRequest | Missing:
        held = self._held.get(prefix.request)
        if held is None:
            if prefix.base > 0 or prefix.start is None:
                return _missing(prefix, have=0)
            held = HeldRequest(prefix.start)
        elif prefix.base > len(held.committed):
            return _missing(prefix, have=len(held.committed))
        elif not held.committed.continues(prefix.base, prefix.base_hash):
            self.forget([prefix.request])
            return _missing(prefix, have=0)
        self._held.pop(prefix.request, None)
        self._held[prefix.request] = held
        held.start = prefix.start or held.start
        held.unchanged = _extend(held.committed, prefix.base, prefix.delta)
        return held


def _extend(committed: CommittedTokens, base: int, delta: Sequence[int]) -> int:
    """Sets committed = committed[:base] + delta; returns the length of the unchanged part."""
    same = 0
    for old, new in zip(committed.ids[base:], delta, strict=False):
        if old != new:
            break
        same += 1
    committed.truncate(base + same)
    committed.extend(delta[same:])
    return base + same


def _missing(prefix: Prefix, have: int) -> Missing:
    return Missing(prefix.request, prefix.attempt, prefix.round, have)
