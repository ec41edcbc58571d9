"""A line from the coordinator to a worker in another process: calls and answers over TCP.

Ray makes the process, places it and watches it, but a call of Ray's to an actor takes ten times as
long as this one, and much of that on the caller's processor (docs/hosts.md). A round has two calls
one behind the other.

Calls are answered one after the other, in the order in which they were made. Each call and each
answer is its length and one pickled string. Nothing is unpickled that did not come behind the
secret, which the two ends have from Ray.
"""

import asyncio
import hmac
import pickle
import secrets
import socket
import struct
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from actors.hosts.protocol import HostLost
from engine.errors import SpindleError
from engine.parallel.ranks import RankLost

_LENGTH = struct.Struct("!Q")
_SECRET_BYTES = 32
_GREETING_S = 10.0
"""For a connection, and for who has connected to say the secret."""


class WorkerFailed(SpindleError):
    """A worker raised what none of ours raises on purpose: a defect, and no death."""


@dataclass(frozen=True, slots=True)
class Raised:
    """In place of an answer."""

    error: SpindleError


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    secret: bytes = field(repr=False)


class Listener:
    """The worker's end."""

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0), backlog=1)
        port: int = self._socket.getsockname()[1]
        self.address = Address(host, port, secrets.token_bytes(_SECRET_BYTES))

    def serve(self, worker: object) -> None:
        """Lets the worker answer whoever knows the secret, until that one hangs up."""
        connection = self._accepted()
        with connection, connection.makefile("rb") as calls:
            while (call := _read(calls)) is not None:
                connection.sendall(_framed(_answer(worker, *pickle.loads(call))))

    def _accepted(self) -> socket.socket:
        with self._socket:
            while True:
                connection, _ = self._socket.accept()
                connection.settimeout(_GREETING_S)
                if _says(connection, self.address.secret):
                    connection.settimeout(None)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return connection
                connection.close()


class RpcChannel(asyncio.Protocol):
    """The caller's end. Made by `connect`."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._end: SpindleError | None = None

    async def call(self, method: str, *arguments: object) -> Any:
        """Raises HostLost when the other end is gone; SpindleErrors of the worker's as they are,
        and WorkerFailed for whatever else it raised."""
        if self._end is not None:
            raise self._end
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(_framed((method, arguments)))
        content = pickle.loads(await answer)
        if isinstance(content, Raised):
            if isinstance(content.error, RankLost):
                raise HostLost(str(content.error)) from content.error
            raise content.error
        return content

    def close(self, why: SpindleError) -> None:
        """Whoever waits for an answer hears why there is none."""
        if self._end is None:
            self._end = why
            self._transport.abort()
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(why)
            self._waiting.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # or uvloop's, under Ray

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            content = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            answer = self._waiting.popleft()
            if not answer.done():  # its caller may have gone
                answer.set_result(content)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(HostLost(f"the connection to it ended ({exc or 'closed by it'})"))


async def connect(address: Address) -> RpcChannel:
    """Raises HostLost where there is no way to the address."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_GREETING_S):
            transport, line = await loop.create_connection(RpcChannel, address.host, address.port)
    except OSError as error:  # TimeoutError is one
        raise HostLost(
            f"no connection to {address.host}:{address.port} ({error!r}): the nodes of a cluster "
            "must reach each other on all ports, as for Ray itself"
        ) from error
    transport.write(address.secret)
    return line


def _answer(worker: object, method: str, arguments: tuple[object, ...]) -> object:
    try:
        return getattr(worker, method)(*arguments)
    except SpindleError as error:
        return Raised(error)
    except Exception:
        return Raised(WorkerFailed(traceback.format_exc()))


def _framed(content: object) -> bytes:
    packed = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(packed)) + packed


def _read(stream: BinaryIO) -> bytes | None:
    """The next string; None at the end."""
    try:
        head = stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        content = stream.read(length)
    except ConnectionError:
        return None
    return content if len(content) == length else None


def _says(connection: socket.socket, secret: bytes) -> bool:
    said = b""
    try:
        while len(said) < len(secret):
            piece = connection.recv(len(secret) - len(said))
            if not piece:
                return False
            said += piece
    except OSError:  # a timeout is one
        return False
    return hmac.compare_digest(said, secret)
