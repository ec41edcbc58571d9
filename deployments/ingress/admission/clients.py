"""Finds out which client sends a request: the tenant of its API key, or its address."""

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
    is_operator: bool = False
    """Whether it may ask for `/debug/trace`."""
    sees_all: bool = True
    """Whether statistics show it all tenants; else only what its own requests explain."""


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
        tenant. `priority_for`: the tenants that may set `priority`. `operators`: those that see
        all tenants."""
        self._tenants = {key.encode(): tenant for tenant, key in api_keys.items()}
        self._priority_for = frozenset(priority_for)
        self._operators = frozenset(operators)

    def client(self, authorization: str, address: str) -> Client:
        """The client that sends this `Authorization` header from this address; raises ApiError 401
        without a valid key."""
        tenant = self._tenant(authorization) if self._tenants else network_of(address)
        named = (tenant, EVERYONE)
        is_operator = not self._operators.isdisjoint(named)
        return Client(
            tenant,
            tenant,
            may_prioritize=not self._priority_for.isdisjoint(named),
            is_operator=is_operator,
            sees_all=is_operator or not self._tenants,
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
