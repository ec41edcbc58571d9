"""What a request leaves for later ones belongs to a scope, and shows to no request of another one.

A scope is a tenant and, within it, the request's `cache_salt`. Tenants share bounded memories by
one rule (`Holdings`): the one that holds most gives room, so that a tenant that floods a memory
evicts what it has left itself.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import blake2b
from time import monotonic
from typing import NamedTuple

IDLE_S = 600.0
"""A tenant that has used a memory this long ago gives its room there before all others."""


class Scope(NamedTuple):
    tenant: str = ""
    """Empty where tenants share, as without API keys."""
    salt: str = ""
    """Differs for any two values of `cache_salt`; empty without."""

    @property
    def digest(self) -> bytes:
        """Differs for any two scopes, and from every digest of tokens (engine/kv/blocks.py), which
        a salt could spell; empty for the one without tenant and salt."""
        if self == SHARED:
            return b""
        tenant = self.tenant.encode()
        named = len(tenant).to_bytes(8, "little") + tenant + self.salt.encode()
        return blake2b(named, digest_size=32, person=b"scope").digest()


def scope_of(tenant: str, cache_salt: str | None) -> Scope:
    """A salt may be a secret, and scopes are kept on disk: only its digest goes further."""
    salt = cache_salt or ""
    return Scope(tenant, salt and blake2b(salt.encode(), digest_size=20).hexdigest())


SHARED = Scope()
"""The scope of all requests where there are neither API keys nor salts."""
INTERNAL = Scope("\0internal")
"""The scope of the system's own prompts, which quote several tenants. No client reaches it."""


class Holdings:
    """How much of one bounded memory each tenant holds, and who gives room to others."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.held: Counter[str] = Counter()
        """The amount of each tenant that holds something."""
        self._used_s: dict[str, float] = {}
        """When each tenant that holds something last used it, the longest ago first."""

    def add(self, tenant: str, amount: int) -> None:
        """A tenant that takes room uses the memory; one that holds nothing is forgotten."""
        self.held[tenant] += amount
        if amount > 0:
            self.use(tenant)
        if not self.held[tenant]:
            del self.held[tenant]
            self._used_s.pop(tenant, None)

    def use(self, tenant: str) -> None:
        if tenant in self.held:
            self._used_s.pop(tenant, None)
            self._used_s[tenant] = self._clock()

    def gives_room(self, candidates: Iterable[str]) -> str:
        """The candidate that has been idle longest, if any is idle, else the one that holds most,
        and of equal ones the one whose last use is the longest ago. There is at least one."""
        among = set(candidates)
        ranked = [tenant for tenant in self._used_s if tenant in among]
        if self._used_s[ranked[0]] < self._clock() - IDLE_S:
            return ranked[0]
        return max(ranked, key=self.held.__getitem__)
