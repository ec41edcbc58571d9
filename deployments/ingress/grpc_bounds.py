"""Bounds what a client over gRPC may hold: connections, calls without a message, and answers that
it does not read.

The gRPC library bounds only the connections of all addresses together, waits for ever for a client
to read, and closes none by itself. So this looks for the server's sockets among the open files of
its process. A call's message is read as a stream of messages, so that it cannot take for ever, and
whatever is checked before it arrives is. Until it is there the client may be anyone.
"""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn
from urllib.parse import unquote
from weakref import WeakValueDictionary

import grpc
import grpc.aio
from google.protobuf.message import Message

from deployments.addresses import contain, parsed
from deployments.connections import Bounds
from deployments.ingress.errors import ApiError

_EVERY_S = 1.0
_FILES = "/dev/fd"

Peer = tuple[str, int]
"""Address and port."""


class GrpcConnections:
    def __init__(self, port: int, bounds: Bounds) -> None:
        self._port = port
        self._bounds = bounds

    async def keep_bounded(self) -> None:
        while True:
            await asyncio.to_thread(self._close_excess)
            await asyncio.sleep(_EVERY_S)

    async def write(self, context: grpc.aio.ServicerContext, message: Message) -> None:
        """Closes the client's connection if it takes too long to take the message; that ends the
        call. A trusted proxy's has the calls of other clients besides, and stays open."""
        peer = peer_of(context)
        if contain(self._bounds.trusted, peer[0]):
            await context.write(message)
            return
        loop = asyncio.get_running_loop()
        late = loop.call_later(self._bounds.timeout_s, self._close, lambda one: one == peer)
        try:
            await context.write(message)
        finally:
            late.cancel()

    def _close_excess(self) -> None:
        places = self._bounds.places("connections", self._bounds.connections)
        self._close(lambda peer: places.take(peer[0]) is not None)

    def _close(self, is_closed: Callable[[Peer], bool]) -> None:
        for descriptor in map(int, os.listdir(_FILES)):
            with suppress(OSError):  # it has been closed meanwhile, or is not connected
                if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    continue
                with _duplicate(descriptor) as found:
                    if found.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    is_of_server = found.getsockname()[1] == self._port
                    if is_of_server and is_closed(_peer(*found.getpeername()[:2])):
                        found.shutdown(socket.SHUT_RDWR)


def peer_of(context: grpc.aio.ServicerContext) -> Peer:
    """Read from `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`; other peers have no address."""
    kind, _, rest = unquote(context.peer()).partition(":")
    address, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return "", 0
    return _peer(address.strip("[]"), int(port))


def _peer(address: str, port: int) -> Peer:
    """Sockets show IPv4 addresses within IPv6 ones, the gRPC library does not."""
    return str(parsed(address) or ""), port


@contextmanager
def _duplicate(descriptor: int) -> Iterator[socket.socket]:
    """The socket itself stays the gRPC library's to close."""
    own = os.dup(descriptor)
    try:
        found = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
    with found:
        yield found


_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_WITHOUT_MESSAGE = 4096
"""Calls of all clients whose message has not arrived; each takes some 20 KB."""
_ARRIVING_MESSAGES = 16
"""Messages of one client that are read at once; the next wait for them."""


class Arrivals:
    def __init__(self, bounds: Bounds) -> None:
        self._timeout_s = bounds.timeout_s
        self._places = bounds.places("calls without a message", _WITHOUT_MESSAGE)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def message(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext, client: str
    ) -> bytes:
        """Raises ApiError if it does not arrive in time, or too many others have not arrived."""
        address, _ = peer_of(context)
        problem = self._places.take(address)
        if problem is not None:
            raise ApiError(429, f"{problem}; send messages with their calls")
        turns = self._turns.setdefault(client, asyncio.Semaphore(_ARRIVING_MESSAGES))
        try:
            async with asyncio.timeout(self._timeout_s), turns:
                return await anext(messages)
        except TimeoutError:
            raise ApiError(
                408, f"the request was not complete within {self._timeout_s:g} s"
            ) from None
        except StopAsyncIteration:
            raise ApiError(400, "the call has no message; send one") from None
        finally:
            self._places.give_back(address)


async def abort(context: grpc.aio.ServicerContext, error: ApiError) -> NoReturn:
    code = _CODES.get(error.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, error.body()["error"]["message"])
    raise AssertionError("a call goes on after its end")
