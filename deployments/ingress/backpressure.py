"""How much of a stream may be on its way between the ingress and its client.

The proxy between them takes everything at once, and tells what the client has taken
(deployments/proxy.py). While more than this is not taken, nothing more of the stream is asked for,
so the replica hears of a reader that stalls, and pauses its request.
"""

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message, Receive, Scope

from deployments.proxy import TELLS, TOLD_EVERY, WRITTEN

MOST_MESSAGES = 4 * TOLD_EVERY


class BackpressureWindow:
    def __init__(self, scope: Scope) -> None:
        """Without end where nobody tells what is taken: there, to write is to wait."""
        self._told = bool(scope.get(TELLS))
        self._room = asyncio.Semaphore(MOST_MESSAGES)

    def listening(self, receive: Receive) -> Receive:
        """Hears what is told among what the client sends; somebody must go on asking for that."""

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
