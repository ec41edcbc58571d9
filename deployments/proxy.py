"""Middlewares for Serve's HTTP proxies, installed by cluster/serve.env: bodies sent ahead,
backpressure, headers that only Serve's own parts may set, and who the client is; and the bounds of
their connections (deployments/connections.py).

Body ahead: by default a proxy passes only the head of a request to the ingress, which then calls
the proxy back for the body, and again to learn whether the client has disconnected: two calls
between processes before the request can start. `BodyAhead` passes the body together with the head.

Backpressure: a proxy accepts everything that an ingress sends, so only the proxy can observe that a
client has stopped reading. `WrittenReports` reports to the ingress how much the client has taken.

Both are optimisations: without them requests start a little later, and for a client that does not
read, the proxy holds the rest of the answer in memory.

Headers: some make Serve route a request, limit its time, or no longer notice that its client has
left, and it fails where they are no UTF-8. `HeadersOfServe` takes them out.

Clients: uvicorn takes the client from `X-Forwarded-For` of trusted proxies, whatever is written
there. `ValidClient` lets it be an address only.
"""

import asyncio
import re

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments import connections
from deployments.addresses import parsed

BODY = "spindle.body"
"""Key in a request's ASGI scope for its body, set if the body arrived in one piece."""
REPORTS_WRITTEN = "spindle.reports_written"
"""Key in the ASGI scope, set if the proxy sends WRITTEN messages for this request."""
WRITTEN = "spindle.written"
"""Type of an ASGI message to the ingress: the client has taken `messages` more body messages."""
MESSAGES_PER_REPORT = 16
"""Body messages per WRITTEN report; fewer reports save calls between processes."""
TAKEN_OUT = "spindle.taken_out"
"""Key in the ASGI scope for the names of headers that `HeadersOfServe` has taken out."""
_OF_SERVE = frozenset(
    (
        *(b"serve-multiplexed-model-id", b"x-session-id", b"x-request-timeout-seconds"),
        b"x-request-disconnect-disabled",
    )
)
"""With `_` in place of `-` Serve reads them as well."""
_READ_BY_SERVE = {
    b"x-request-id": re.compile(rb"[!-~]{1,128}"),
    b"traceparent": re.compile(rb"[ -~]*"),
}
"""Headers that clients may set, and what they may be."""


def middlewares() -> list[Middleware]:
    """Called by Serve when a proxy starts, before its server. The last one is outermost."""
    connections.install()
    return [
        Middleware(WrittenReports),
        Middleware(BodyAhead),
        Middleware(HeadersOfServe),
        Middleware(ValidClient),
    ]


class ValidClient:
    """Where the client is named by something else than an address, it is the connection's peer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.pop(connections.PEER, None)
        client = scope.get("client")
        if peer is not None and client is not None and parsed(client[0]) is None:
            scope["client"] = (peer, 0)
        await self._app(scope, receive, send)


class WrittenReports:
    """Inserts WRITTEN messages, which report how much the client has taken, into the messages from
    client to ingress."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope[REPORTS_WRITTEN] = True
        unreported, due = 0, asyncio.Event()
        incoming: asyncio.Future[Message] | None = None

        async def written(message: Message) -> None:
            nonlocal unreported
            await send(message)  # blocks while the client's socket buffer is full
            if message["type"] == "http.response.body":
                unreported += 1
                if unreported >= MESSAGES_PER_REPORT:
                    due.set()

        async def next_message() -> Message:
            nonlocal unreported, incoming
            incoming = incoming or asyncio.ensure_future(receive())
            report_due = asyncio.create_task(due.wait())
            try:
                await asyncio.wait((incoming, report_due), return_when=asyncio.FIRST_COMPLETED)
            finally:
                report_due.cancel()
            if incoming.done():
                message, incoming = incoming, None
                return message.result()
            due.clear()
            count, unreported = unreported, 0
            return {"type": WRITTEN, "messages": count}

        try:
            await self._app(scope, next_message, written)
        finally:
            if incoming is not None:
                incoming.cancel()


class HeadersOfServe:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers", ())
        taken = [name for name, value in headers if _is_harmful(name, value)]
        if taken:
            kept = [(name, value) for name, value in headers if not _is_harmful(name, value)]
            names = [name.decode("latin-1") for name in taken]
            scope = {**scope, "headers": kept, TAKEN_OUT: names}
        await self._app(scope, receive, send)


def _is_harmful(name: bytes, value: bytes) -> bool:
    name = name.lower().replace(b"_", b"-")
    allowed = _READ_BY_SERVE.get(name)
    return name in _OF_SERVE or (allowed is not None and allowed.fullmatch(value) is None)


class BodyAhead:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        first = await receive()
        if first["type"] == "http.request" and not first.get("more_body", False):
            scope[BODY] = first.get("body", b"")
        await self._app(scope, replay(first, receive), send)


def replay(first: Message, receive: Receive) -> Receive:
    """A `receive` that returns `first` again and then continues with `receive`."""
    messages = [first]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
