"""Limits how much of a stream may be in transit between the ingress and its client.

The proxy between them accepts everything at once, and reports what the client has taken
(deployments/proxy.py). While more than the limit is in transit, the ingress requests no further
pieces and acknowledges none, so that the replica pauses the request of a client that does not read.
"""

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message, Receive, Scope

from deployments.proxy import TELLS, TOLD_EVERY, WRITTEN

MOST_MESSAGES = 4 * TOLD_EVERY


class BackpressureWindow:
    def __init__(self, scope: Scope) -> None:
        """Unlimited if the proxy does not report what the client has taken; there a write blocks
        until the client takes it."""
        self._told = bool(scope.get(TELLS))
        self._room = asyncio.Semaphore(MOST_MESSAGES)

    def listening(self, receive: Receive) -> Receive:
        """Wraps `receive` so that it also processes WRITTEN reports; the caller must keep calling
        it."""

        async def heard() -> Message:
            message = await receive()
            if message["type"] == WRITTEN:
                for _ in range(message["messages"]):
                    self._room.release()
            return message

        return heard

    async def limited(self, messages: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        async for message in messages:
            if self._told:
                await self._room.acquire()
            yield message
