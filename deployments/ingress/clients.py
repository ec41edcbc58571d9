"""Finds out which client sends a request, and limits how many places one client holds at the
replicas, so that none can take all of them.

A client is the tenant of its API key, or its address. A place is one running or waiting choice of a
request. A client's share is reckoned over the replicas that there are when it asks: with `limits`
as by default and one replica there are 16 + 64 places, of which one client may hold three quarters,
60.
"""

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from cluster.config import AppConfig
from cluster.config.keys import EVERYONE
from deployments.addresses import network_of
from deployments.ingress.errors import ApiError


@dataclass(frozen=True, slots=True)
class Client:
    tenant: str
    """Among tenants the schedule shares capacity fairly."""
    share_of: str | None
    """Whose share of all places its requests count to; None: a caller without such a limit."""
    may_prioritize: bool
    """Whether its requests may set `priority`."""
    is_operator: bool = True
    """Whether it may see statistics, which show all tenants."""


def trusted(tenant: str) -> Client:
    """A caller by handle, which is code inside the cluster and names its tenant itself."""
    return Client(tenant, tenant or None, may_prioritize=True)


class Keys:
    def __init__(
        self,
        api_keys: Mapping[str, str],
        priority_for: Collection[str] = (),
        operators: Collection[str] = (),
    ) -> None:
        """`api_keys`: the key of each tenant. If empty, no key is required, and each address is a
        tenant. `priority_for`: the tenants that may set `priority`. `operators`: those that may
        see statistics."""
        self._tenants = {key.encode(): tenant for tenant, key in api_keys.items()}
        self._priority_for = frozenset(priority_for)
        self._operators = frozenset(operators)

    def client(self, authorization: str, address: str) -> Client:
        """The client that sends this `Authorization` header from this address; raises ApiError 401
        without a valid key."""
        tenant = self._tenant(authorization) if self._tenants else network_of(address)
        named = (tenant, EVERYONE)
        return Client(
            tenant,
            tenant,
            may_prioritize=not self._priority_for.isdisjoint(named),
            is_operator=not self._tenants or not self._operators.isdisjoint(named),
        )

    def _tenant(self, authorization: str) -> str:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            for key, tenant in self._tenants.items():
                # Constant-time comparison, so that response times do not reveal how much of a key
                # is right.
                if hmac.compare_digest(key, given.strip().encode()):
                    return tenant
        raise ApiError(401, "no valid API key in `Authorization: Bearer`", None, "invalid_api_key")


class Shares:
    def __init__(self, config: AppConfig, replicas: Callable[[], int]) -> None:
        """`replicas`: how many there are at present."""
        limits = config.limits
        self._places_per_replica = limits.max_batch + limits.max_waiting
        self._client_share = limits.client_share
        self._most_replicas = config.scaling.max_replicas
        self._replicas = replicas
        self._held: Counter[str] = Counter()

    @property
    def largest_request(self) -> int:
        """The most choices of one request that can ever be admitted."""
        return self._share(self._most_replicas)

    def take(self, client: Client, choices: int) -> None:
        """Takes one place per choice; raises ApiError 429 if the client would exceed its share."""
        if client.share_of is None:
            return
        share, held = self._share(self._replicas()), self._held[client.share_of]
        if held + choices > share:
            raise ApiError(
                429,
                f"one client may have {share} of all choices running or waiting at once; you have "
                f"{held}, and this request needs {choices}; try again later",
            )
        self._held[client.share_of] += choices

    def _share(self, replicas: int) -> int:
        return max(1, int(self._client_share * self._places_per_replica * max(1, replicas)))

    def give_back(self, client: Client, choices: int) -> None:
        """Once for each `take`."""
        if client.share_of is None:
            return
        self._held[client.share_of] -= choices
        if not self._held[client.share_of]:
            del self._held[client.share_of]
