"""Past outputs, which a lookup searches: one text for each scope, all of them within one bound."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from time import monotonic

from engine.drafters.text_index import NONE, TOKENS, TextIndex
from engine.scopes import Holdings, Scope

SCOPE_TOKENS = 128
"""What a scope costs beside its outputs, counted in tokens, so that many small scopes are bounded
too. The first one is free."""
_NOTHING = TextIndex()


class PastOutputs:
    """At most `max_tokens` tokens of whole outputs. The tenant that holds most gives room, in its
    least recently used scope the least recently used output."""

    def __init__(self, max_tokens: int, clock: Callable[[], float] = monotonic) -> None:
        self.max_tokens = max_tokens
        self._left = max_tokens + SCOPE_TOKENS
        self._holdings = Holdings(clock)
        self._texts: dict[str, dict[Scope, _ScopeText]] = {}
        """By tenant and scope, a tenant's least recently used scope first."""

    def __len__(self) -> int:
        """The number of scopes that have outputs."""
        return sum(map(len, self._texts.values()))

    def index(self, scope: Scope) -> TextIndex:
        """The outputs of this scope; not to be changed."""
        text = self._texts.get(scope.tenant, {}).get(scope)
        return _NOTHING if text is None else text.index

    def add(self, scope: Scope, tokens: Sequence[int]) -> None:
        if not 0 < len(tokens) <= self.max_tokens:
            return
        while self._left < len(tokens) + self._missing(scope):
            self._evict()
        self._take(scope.tenant, len(tokens) + self._missing(scope))
        text = self._texts.setdefault(scope.tenant, {}).pop(scope, None) or _ScopeText()
        text.add(tokens)
        self._texts[scope.tenant][scope] = text

    def touch(self, scope: Scope, position: int) -> None:
        """Marks the output around this position of the scope's index as used by a draft."""
        scopes = self._texts[scope.tenant]
        text = scopes[scope] = scopes.pop(scope)
        text.touch(position)
        self._holdings.use(scope.tenant)

    def _missing(self, scope: Scope) -> int:
        return 0 if scope in self._texts.get(scope.tenant, ()) else SCOPE_TOKENS

    def _take(self, tenant: str, tokens: int) -> None:
        self._left -= tokens
        self._holdings.add(tenant, tokens)

    def _evict(self) -> None:
        tenant = self._holdings.gives_room(self._texts)
        scopes = self._texts[tenant]
        scope, text = next(iter(scopes.items()))
        self._take(tenant, -text.evict())
        if not text.tokens:
            del scopes[scope]
            self._take(tenant, -SCOPE_TOKENS)
        if not scopes:
            del self._texts[tenant]


class _ScopeText:
    """The outputs of one scope."""

    def __init__(self) -> None:
        self.index = TextIndex()
        self.tokens = 0
        self._starts: list[int] = []
        """Where each output in the index starts, ascending, including evicted ones."""
        self._lengths: dict[int, int] = {}
        """Length by start of the outputs that are not evicted, least recently used first."""

    def add(self, tokens: Sequence[int]) -> None:
        self._register(len(tokens))
        self.index.extend([*tokens, NONE])

    def touch(self, position: int) -> None:
        start = self._starts[bisect_right(self._starts, position) - 1]
        self._lengths[start] = self._lengths.pop(start)

    def evict(self) -> int:
        """Drops the least recently used output; returns its number of tokens."""
        oldest = next(iter(self._lengths))
        length = self._lengths.pop(oldest)
        self.index.erase(oldest, oldest + length)
        self.tokens -= length
        if self.index.end > 3 * self.tokens + SCOPE_TOKENS:
            self._compact()
        return length

    def _compact(self) -> None:
        """Rebuilds the index from the outputs that are not evicted.

        They fill at most two thirds of it, with the NONE after each output, so this costs a
        constant amount for each token that was added or evicted since the last time.
        """
        text, parts = self.index.store[TOKENS], list(self._lengths.items())
        kept = [text[start : start + length + 1] for start, length in parts]
        self.index = TextIndex()
        self._starts.clear()
        self._lengths.clear()
        self.tokens = 0
        for tokens in kept:
            self._register(len(tokens) - 1)
            self.index.extend(tokens)

    def _register(self, length: int) -> None:
        """Books an output that the caller appends to the index next."""
        self._starts.append(self.index.end)
        self._lengths[self.index.end] = length
        self.tokens += length
