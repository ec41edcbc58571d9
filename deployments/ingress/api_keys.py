"""Whose request it is: the tenant behind an API key."""

import hmac
from collections.abc import Mapping

from deployments.ingress.errors import ApiError


class Keys:
    def __init__(self, api_keys: Mapping[str, str]) -> None:
        """By tenant. None: open to all, who are one tenant."""
        self._tenants = {key.encode(): tenant for tenant, key in api_keys.items()}

    def tenant(self, authorization: str) -> str:
        """Of a request with this `Authorization`; ApiError 401 without a valid key."""
        if not self._tenants:
            return ""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            for key, tenant in self._tenants.items():
                # Takes as long for a wrong key as for a nearly right one.
                if hmac.compare_digest(key, given.strip().encode()):
                    return tenant
        raise ApiError(401, "no valid API key in `Authorization: Bearer`", None, "invalid_api_key")
