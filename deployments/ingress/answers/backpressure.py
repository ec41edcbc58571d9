"""Limits how much of a stream may be in transit between the ingress and its client.

The proxy between them accepts everything at once, and reports what the client has taken
(deployments/proxy.py). While more than the limit is in transit, the ingress requests no further
pieces and acknowledges none, so that the replica pauses the request of a client that does not read.
"""

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message, Receive, Scope

from deployments.proxy import MESSAGES_PER_REPORT, REPORTS_WRITTEN, WRITTEN

MAX_IN_TRANSIT = 4 * MESSAGES_PER_REPORT
"""Messages of one stream that the client may not have taken yet."""


class BackpressureWindow:
    def __init__(self, scope: Scope) -> None:
        """Without limit if the proxy does not report what the client has taken; a write then blocks
        until the client takes it."""
        self._limits_writes = bool(scope.get(REPORTS_WRITTEN))
        self._free = asyncio.Semaphore(MAX_IN_TRANSIT)

    def receiving(self, receive: Receive) -> Receive:
        """Wraps `receive` so that it also processes WRITTEN reports; the caller must keep calling
        it."""

        async def received() -> Message:
            message = await receive()
            if message["type"] == WRITTEN:
                for _ in range(message["messages"]):
                    self._free.release()
            return message

        return received

    async def limited(self, messages: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        async for message in messages:
            if self._limits_writes:
                await self._free.acquire()
            yield message
