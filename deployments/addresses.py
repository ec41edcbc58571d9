"""Addresses of clients: which belong to one client, which are trusted proxies', and how much of
something each holds."""

from collections import Counter
from collections.abc import Mapping
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

TRUSTED = "FORWARDED_ALLOW_IPS"
"""uvicorn's variable for the proxies whose `X-Forwarded-For` names the client."""
_IPV6_NETWORK_BITS = 64
"""Addresses of one network of this size belong to one client: each has 2⁶⁴ of them."""

Networks = tuple[IPv4Network | IPv6Network, ...]


def trusted_proxies(environment: Mapping[str, str]) -> Networks:
    """Raises ValueError naming the variable if a part of it is no address or network."""
    listed = [part.strip() for part in environment.get(TRUSTED, "").split(",")]
    try:
        return tuple(ip_network(part) for part in listed if part)
    except ValueError as error:
        raise ValueError(
            f"{TRUSTED}: {error}; list addresses and networks of proxies, separated by commas"
        ) from None


def parsed(address: str) -> IPv4Address | IPv6Address | None:
    """None for what is no address. IPv4 within IPv6 becomes IPv4."""
    try:
        found = ip_address(address)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def network_of(address: str) -> str:
    """The address, or for IPv6 the network of the client; "" for what is no address."""
    found = parsed(address)
    if isinstance(found, IPv6Address):
        return str(ip_network((int(found), _IPV6_NETWORK_BITS), strict=False))
    return "" if found is None else str(found)


class Places:
    """Bounds how many of something all clients hold at once, and how many one address does."""

    def __init__(self, what: str, most: int, share: float, exempt: Networks) -> None:
        """`share`: the part that one address may hold, unless it is in `exempt`."""
        self._what = what
        self._most = most
        self._most_of_one = max(1, int(share * most))
        self._exempt = exempt
        self._held: Counter[str] = Counter()
        self._all = 0

    def take(self, address: str) -> str | None:
        """None if there is a place, which is then to be given back; else why there is none."""
        network = network_of(address)
        if self._all >= self._most:
            return f"more than {self._most} {self._what} are open"
        if self._held[network] >= self._most_of_one and not contain(self._exempt, address):
            return f"more than {self._most_of_one} {self._what} of one address are open"
        self._held[network] += 1
        self._all += 1
        return None

    def give_back(self, address: str) -> None:
        network = network_of(address)
        self._all -= 1
        self._held[network] -= 1
        if not self._held[network]:
            del self._held[network]


def contain(networks: Networks, address: str) -> bool:
    found = parsed(address)
    return found is not None and any(found in network for network in networks)
