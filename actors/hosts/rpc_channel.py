"""A connection from the coordinator to a worker in another process: calls and answers over TCP.

Ray creates, places and watches the process, but one of Ray's own calls to an actor takes ten times
as long as a call here, much of it on the caller's processor (docs/hosts.md), and a round has two
calls in sequence.

Calls are answered in the order in which they were made. Each call and each answer is its length and
one pickled string. Nothing is unpickled before the peer has sent the secret, which both ends got
through Ray.
"""

import asyncio
import hmac
import logging
import pickle
import secrets
import socket
import struct
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from actors.hosts.protocol import HostLost
from engine.errors import RankLost, SpindleError

_LOG = logging.getLogger("spindle")
_LENGTH = struct.Struct("!Q")
_SECRET_BYTES = 32
_GREETING_S = 10.0
"""The limit for connecting, and then for sending the whole secret."""


class WorkerFailed(SpindleError):
    """A worker raised an exception that is no SpindleError: a defect, not the loss of the host."""


@dataclass(frozen=True, slots=True)
class Raised:
    """Sent in place of an answer where the worker raised."""

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
        """Answers the calls of the first peer that sends the secret, until it disconnects."""
        connection = self._accepted()
        with connection, connection.makefile("rb") as calls:
            while (call := _read(calls)) is not None:
                connection.sendall(_framed(_answer(worker, *pickle.loads(call))))

    def _accepted(self) -> socket.socket:
        with self._socket:
            while True:
                connection, _ = self._socket.accept()
                if _sends(connection, self.address.secret):
                    connection.settimeout(None)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return connection
                connection.close()


class RpcChannel(asyncio.Protocol):
    """The caller's end, created by `connect`."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._closed_by: SpindleError | None = None

    async def call(self, method: str, *arguments: object) -> Any:
        """Raises HostLost when the connection has ended, the worker's SpindleErrors unchanged, and
        WorkerFailed for any other exception of the worker."""
        if self._closed_by is not None:
            raise self._closed_by
        call = _framed((method, arguments))  # first: one that is not sent gets no answer
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(call)
        content = pickle.loads(await answer)
        if isinstance(content, Raised):
            if isinstance(content.error, RankLost):
                raise HostLost(str(content.error)) from content.error
            raise content.error
        return content

    def close(self, error: SpindleError) -> None:
        """Raises `error` from all calls that wait for an answer and from all later ones."""
        if self._closed_by is None:
            self._closed_by = error
            self._transport.abort()
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(error)
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
            if not answer.done():  # its caller may have been cancelled
                answer.set_result(content)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(HostLost(f"the connection to it ended ({exc or 'closed by it'})"))


async def connect(address: Address) -> RpcChannel:
    """Raises HostLost where the address cannot be reached."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_GREETING_S):
            transport, channel = await loop.create_connection(
                RpcChannel, address.host, address.port
            )
    except OSError as error:  # includes TimeoutError
        raise HostLost(
            f"no connection to {address.host}:{address.port} ({error!r}): the nodes of a cluster "
            "must reach each other on all ports, as for Ray itself"
        ) from error
    transport.write(address.secret)
    return channel


def _answer(worker: object, method: str, arguments: tuple[object, ...]) -> object:
    try:
        return getattr(worker, method)(*arguments)
    except SpindleError as error:
        return Raised(error)
    except Exception:
        _LOG.exception("%s fails", method)
        return Raised(WorkerFailed(traceback.format_exc()))


def _framed(content: object) -> bytes:
    packed = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(packed)) + packed


def _read(stream: BinaryIO) -> bytes | None:
    """The next string; None at the end of the connection."""
    try:
        head = stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        content = stream.read(length)
    except ConnectionError:
        return None
    return content if len(content) == length else None


def _sends(connection: socket.socket, secret: bytes) -> bool:
    received = b""
    deadline = time.monotonic() + _GREETING_S
    try:
        while len(received) < len(secret):
            # For each piece what is left: one byte at a time must not hold the listener for longer.
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            connection.settimeout(left_s)
            piece = connection.recv(len(secret) - len(received))
            if not piece:
                return False
            received += piece
    except OSError:  # includes a timeout
        return False
    return hmac.compare_digest(received, secret)
