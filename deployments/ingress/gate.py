"""Checks a request's host, key, query and body size over HTTP, before anything of it is parsed.

Hosts: a web page can have its own name resolve to the address of this server (DNS rebinding), and
then read whatever needs no key. But its requests still name that host, so only `localhost`,
addresses and the names of the config are served.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.config.keys import EVERYONE
from deployments.addresses import parsed
from deployments.ingress.clients import Client, Keys
from deployments.ingress.errors import ApiError
from deployments.proxy import BODY, replay
from deployments.ray_internals import delay_receive

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


_MOST_DIGITS = 18
"""The most digits of a `content-length` that are read as a number."""
_ARRIVING_BODIES = 16
"""Bodies of the largest size that may be arriving from one client at once."""


def route_path(scope: Scope) -> str:
    """The path within the application. `Request.url` is not used for it: it is put together from
    headers, and cannot be made of some of them."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class Gate:
    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        hosts: Hosts,
        max_body_bytes: int,
        open_paths: Collection[str],
        refuse: Callable[[Request, Exception], Response],
    ) -> None:
        """`open_paths`: those that need no key, whatever the host, and get no body. `refuse`: the
        response to an error."""
        self._app = app
        self._open_paths = open_paths
        self._keys = keys
        self._hosts = hosts
        self._max_body_bytes = max_body_bytes
        self._refuse = refuse
        self._arriving: Counter[str] = Counter()
        """Bytes of each client's bodies that are not complete yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        request.state.client = None
        try:
            if not scope.get("query_string", b"").isascii():
                raise ApiError(400, "the query of the URL is not ASCII; percent-encode it")
            body = b""
            if route_path(scope) not in self._open_paths:
                self._hosts.check(request.headers.getlist("host"))
                request.state.client = client = self._client(request)
                body = await self._body(request, client)
        except ApiError as error:
            await self._refuse(request, error)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        replayed_body: Message = {"type": "http.request", "body": body, "more_body": False}
        with suppress(ClientDisconnect):
            await self._app(scope, replay(replayed_body, receive), send)

    def _client(self, request: Request) -> Client:
        address = "" if request.client is None else request.client.host
        return self._keys.client(request.headers.get("authorization", ""), address)

    async def _body(self, request: Request, client: Client) -> bytes:
        announced = request.headers.get("content-length", "")
        if announced.isdecimal():
            self._check_size(int(announced[:_MOST_DIGITS]))
        if BODY in request.scope:
            delay_receive(request.receive)
            whole: bytes = request.scope[BODY]
            self._check_size(len(whole))
            return whole
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                self._arriving[client.tenant] += len(part)
                self._check_size(len(body))
                self._check_arriving(client)
        finally:
            self._arriving[client.tenant] -= len(body)
            if not self._arriving[client.tenant]:
                del self._arriving[client.tenant]
        return bytes(body)

    def _check_size(self, size: int) -> None:
        if size > self._max_body_bytes:
            raise ApiError(
                413,
                f"the body is longer than {self._max_body_bytes} bytes; send less at once",
            )

    def _check_arriving(self, client: Client) -> None:
        most = _ARRIVING_BODIES * self._max_body_bytes
        if self._arriving[client.tenant] > most:
            raise ApiError(
                429,
                f"more than {most} bytes of one client's requests are arriving at once; try again "
                "later",
            )
