"""Which `Host` a request may name, so that no web page reaches the API as its own origin.

A page can have its own name resolve to the address of this server (DNS rebinding), and may then
read the answers of whatever needs no key. It cannot do so under `localhost` or an address, because
what it was loaded from has another one.
"""

import re
from collections.abc import Collection, Iterable

from cluster.config.keys import EVERYONE
from deployments.addresses import parsed
from deployments.ingress.errors import ApiError

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^][:/?#@]+))(?::[0-9]*)?")
"""An IPv6 address in brackets, or a name or IPv4 address; and a port."""
_MOST_SHOWN = 100


class Hosts:
    def __init__(self, allowed: Collection[str], has_keys: bool) -> None:
        """`allowed`: names, besides localhost and all addresses; with keys none allows all."""
        self._allowed = {"localhost", *allowed}
        self._allows_all = EVERYONE in allowed or (has_keys and not allowed)

    def check(self, given: Iterable[str]) -> None:
        """Raises ApiError 403. Browsers always send a host, some probes do not."""
        for host in given:
            if not (self._allows_all or self._is_allowed(host)):
                raise ApiError(
                    403,
                    f"the host {host[:_MOST_SHOWN]!a} is not allowed: any web page could use "
                    "it; name it in `allowed_hosts` of the config, or ask by address",
                )

    def _is_allowed(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match[1] or match[2]).lower()
        return name in self._allowed or parsed(name) is not None
