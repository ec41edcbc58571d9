"""Bounds the calls over gRPC whose message has not arrived.

A call's message is read as a stream of messages, so that its arrival has a time limit and the key
is checked before it. Until then the client may be anyone.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NoReturn
from urllib.parse import unquote
from weakref import WeakValueDictionary

import grpc
import grpc.aio

from deployments.addresses import parsed
from deployments.connections import Bounds
from deployments.ingress.errors import ApiError

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
        address = peer_of(context)
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


def peer_of(context: grpc.aio.ServicerContext) -> str:
    """The address in `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`; other peers have none."""
    _, _, rest = unquote(context.peer()).partition(":")
    return str(parsed(rest.rpartition(":")[0].strip("[]")) or "")


async def abort(context: grpc.aio.ServicerContext, error: ApiError) -> NoReturn:
    code = _CODES.get(error.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, error.body()["error"]["message"])
    raise AssertionError("a call goes on after its end")
