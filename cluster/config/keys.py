"""API keys, which a config holds or refers to by environment variables, because Serve logs an
application's config, and config files are stored; and what else says who may ask."""

import re
from collections import Counter
from collections.abc import Collection, Mapping

EVERYONE = "*"
"""Stands for all clients, with or without a key, where a config lists tenants."""
_REFERENCE = "env:"


def check_reference(key: str) -> str:
    """Raises ValueError if the key refers to a variable with an invalid name."""
    variable = _variable(key)
    if variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ValueError(f"after {_REFERENCE} there is no name of an environment variable")
    return key


def check_host(name: str) -> str:
    """The name in lower case; raises ValueError if it is a URL, or has a port."""
    if name != EVERYONE and not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise ValueError(
            f'{name!r} is no name of a host; leave out scheme, port and path, or give "{EVERYONE}"'
        )
    return name.lower()


def differ(field: str, keys: Mapping[str, str]) -> None:
    twice = [key for key, count in Counter(keys.values()).items() if count > 1]
    owners = [name for name, key in keys.items() if key in twice]
    if owners:
        raise ValueError(f"{field}: {' and '.join(owners)} have the same key; give each its own")


def check_tenants(field: str, tenants: Collection[str], keys: Mapping[str, str]) -> None:
    unknown = [tenant for tenant in tenants if tenant not in keys and tenant != EVERYONE]
    if unknown:
        raise ValueError(
            f'{field}: {unknown[0]!r} has no key in api_keys; name its tenants, or "{EVERYONE}" '
            "for every client"
        )


def resolved(field: str, keys: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The keys, with references resolved; raises ValueError naming the field and the missing
    variable."""
    found = {}
    for name, key in keys.items():
        variable = _variable(key)
        found[name] = key if variable is None else environment.get(variable, "")
        if not found[name]:
            raise ValueError(
                f"{field}.{name}: the environment variable {variable} is not set where the "
                "ingress runs"
            )
    differ(field, found)
    return found


def _variable(key: str) -> str | None:
    return key.removeprefix(_REFERENCE) if key.startswith(_REFERENCE) else None
