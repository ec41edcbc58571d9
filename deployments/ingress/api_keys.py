"""Maps API keys to tenants."""

import hmac
from collections.abc import Mapping

from deployments.ingress.errors import ApiError


class Keys:
    def __init__(self, api_keys: Mapping[str, str]) -> None:
        """`api_keys`: the key of each tenant. If empty, no key is required and all clients are one
        tenant."""
        self._tenants = {key.encode(): tenant for tenant, key in api_keys.items()}

    def tenant(self, authorization: str) -> str:
        """The tenant of a request with this `Authorization` header; raises ApiError 401 without a
        valid key."""
        if not self._tenants:
            return ""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            for key, tenant in self._tenants.items():
                # Constant-time comparison, so that response times do not reveal how much of a key
                # is right.
                if hmac.compare_digest(key, given.strip().encode()):
                    return tenant
        raise ApiError(401, "no valid API key in `Authorization: Bearer`", None, "invalid_api_key")
