"""Bounds on the HTTP connections of Serve's proxies, which deployments/proxy.py installs.

uvicorn, which Serve runs, does not limit how long a request takes to arrive, how large its head is,
how long an answer stays unread, or how many requests a client sends ahead; and it believes what
127.0.0.1 says about who the client is. It takes its protocol's class from a table, so the bounds
need no change of Serve. Operators set theirs in the environment (cluster/serve.env).
"""

import asyncio
import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Any, ClassVar

import uvicorn.config
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from deployments.addresses import TRUSTED, Networks, Places, trusted_proxies

TIMEOUT = "SPINDLE_HTTP_TIMEOUT_S"
CONNECTIONS = "SPINDLE_HTTP_CONNECTIONS"
PEER = "spindle.peer"
"""Key in a request's scope for the address that its connection comes from."""

_REFUSAL = (
    b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
)
_TOO_MANY = b"503 Service Unavailable\r\nretry-after: 1"
_MOST_PIPELINED = 64
"""Requests of one connection that wait for the one before them; then it is closed."""
_MOST_WAITING = 2048
"""Connections that the system may hold ready; libuv accepts all of them at once."""
_OTHER_FILES = 64
"""That the process opens later."""
_LOOKS = 8
"""How often, within the time limit, it is seen whether a client takes something of its answer."""
_EXCESS_S = 1.0
"""The longest that a connection beyond the bound stays open: a client reads why it is closed only
after it has sent something."""


@dataclass(frozen=True, slots=True)
class Bounds:
    timeout_s: float = 30.0
    """The longest time for a request to arrive completely, and for a client to take nothing of its
    answer."""
    head_bytes: int = 65536
    """The most bytes of a request's first line and headers."""
    connections: int = 4096
    """The most open connections of one proxy; others are answered with 503."""
    address_share: float = 0.25
    """The part of them that one address may have, for IPv6 a /64 network."""
    trusted: Networks = ()
    """Proxies that name the client in `X-Forwarded-For`, and may have all connections."""

    def places(self, what: str, most: int) -> Places:
        return Places(what, most, self.address_share, self.trusted)


def bounds(environment: Mapping[str, str]) -> Bounds:
    """Raises ValueError naming the variable that is no positive number or no list of addresses."""
    default = Bounds()
    return Bounds(
        timeout_s=_positive(environment, TIMEOUT, default.timeout_s),
        connections=int(_positive(environment, CONNECTIONS, default.connections)),
        trusted=trusted_proxies(environment),
    )


def _positive(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: {text!r} is no positive number")
    return value


def install() -> None:
    """Has the servers that this process starts from now on bound their connections. They take no
    WebSockets, whose connections none of this would bound."""
    given = _fitted(bounds(os.environ))
    BoundedConnection.bounds = given
    BoundedConnection.places = given.places("connections", given.connections)
    os.environ.setdefault(TRUSTED, "")  # else uvicorn trusts 127.0.0.1
    uvicorn.config.HTTP_PROTOCOLS["auto"] = f"{__name__}:BoundedConnection"
    uvicorn.config.WS_PROTOCOLS["auto"] = None


def _fitted(given: Bounds) -> Bounds:
    """With so many connections as the process may have open files: above that libuv closes them
    without an answer, also those that are only accepted to be refused."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    others = len(os.listdir("/proc/self/fd")) + _OTHER_FILES
    room = max(4, most_files - others)
    waiting = min(_MOST_WAITING, room // 8)
    bounded = partialmethod(Config.__init__, backlog=waiting)
    Config.__init__ = bounded  # type: ignore[assignment, method-assign]
    most = room // 2
    if most >= given.connections:
        return given
    print(
        f"Spindle: a proxy may open {most_files} files, so it takes {most} connections at once "
        f"instead of {given.connections}: raise `ulimit -n` to "
        f"{2 * given.connections + others}, or lower {CONNECTIONS}",
        flush=True,
    )
    return replace(given, connections=most)


class BoundedConnection(HttpToolsProtocol):
    bounds: ClassVar[Bounds]
    places: ClassVar[Places]
    """How many connections this process has, and each address."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._bounds = self.bounds
        self._reading = _Timer(self.loop, self._bounds.timeout_s, self._too_slow)
        """Runs while a request is arriving."""
        self._writing = _Timer(self.loop, self._bounds.timeout_s / _LOOKS, self._look)
        """Runs while an answer waits for the client to take more of it."""
        self._waiting_bytes = 0
        """Those of the answer, at the last look."""
        self._idle_looks = 0
        """Looks since the client has taken something."""
        self._heads = 0
        """Complete heads so far."""
        self._head_bytes = 0
        """Bytes of the head that is arriving."""
        self._in_body = False
        self._body_pieces = 0
        self._beside_body = 0
        """Bytes since the last piece of the body that is arriving: extensions and trailers."""
        self._answered: Any = None
        """The request that is being answered: with pipelining not the last one."""
        self._address = ""
        self._excess: str | None = None
        """Why there are too many connections with this one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._reading.start()
        self._address = "" if self.client is None else self.client[0]
        self._excess = self.places.take(self._address)
        if self._excess is not None:
            self.loop.call_later(_EXCESS_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._excess is None:
            self.places.give_back(self._address)
        self._reading.stop()
        self._writing.stop()
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._excess is not None:
            self._head_bytes = len(data)
            self._refuse(_TOO_MANY, self._excess)
            return
        heads, in_body, pieces = self._heads, self._in_body, self._body_pieces
        if not in_body:
            self._reading.start()  # the next request of a connection that is kept alive
        super().data_received(data)
        if in_body or self._heads > heads:
            self._head_bytes = 0
        else:
            self._head_bytes += len(data)
        if in_body and self._in_body:
            self._beside_body += len(data) if self._body_pieces == pieces else 0
        if max(self._head_bytes, self._beside_body) > self._bounds.head_bytes:
            at_most = f"the first line and headers have more than {self._bounds.head_bytes} bytes"
            self._refuse(b"431 Request Header Fields Too Large", at_most)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[PEER] = self._address  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MOST_PIPELINED:
            self.transport.close()
        if self.transport.is_closing():  # what else has been read is left
            return
        self._heads += 1
        self._in_body = True
        if self.parser.should_upgrade() and self._announces_body():
            # The parser skips the body, which would then be read as the next request.
            self._refuse(b"400 Bad Request", "send requests with a body without `Upgrade`")
            return
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        if not self.flow.write_paused:
            self._writing.stop()
        super()._start_asgi_task(cycle, app)

    def _announces_body(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def on_body(self, body: bytes) -> None:
        if self.transport.is_closing():
            return
        self._body_pieces += 1
        self._beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.transport.is_closing():
            return
        self._in_body = False
        self._beside_body = 0
        self._reading.stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._watch_writing()  # its end, however short; a connection that closes waits for it, too
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._watch_writing()
        super().pause_writing()

    def _watch_writing(self) -> None:
        self._waiting_bytes, self._idle_looks = self.transport.get_write_buffer_size(), 0
        if self._waiting_bytes:
            self._writing.start()

    def resume_writing(self) -> None:
        self._writing.stop()
        super().resume_writing()

    def _too_slow(self) -> None:
        if self.flow.read_paused:  # the server itself has not read on
            self._reading.start()
            return
        within = f"the request was not complete within {self._bounds.timeout_s:g} s"
        self._refuse(b"408 Request Timeout", within)

    def _look(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        if not waiting:
            return
        self._idle_looks = 0 if waiting < self._waiting_bytes else self._idle_looks + 1
        self._waiting_bytes = waiting
        if self._idle_looks < _LOOKS:
            self._writing.start()
        else:
            self.transport.abort()

    def _refuse(self, status: bytes, reason: str) -> None:
        """Closes the connection, with a response where the client waits for one."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete and cycle.response_started
        if (self._in_body or self._head_bytes) and not answering:
            body = reason.encode()
            self.transport.write(_REFUSAL % (status, len(body), body))
        self.transport.close()


class _Timer:
    """Calls `late` if it is started and not stopped in time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, late: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._late = late
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Does nothing while it runs."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._fire)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._late()
