"""Sends answers over HTTP, whole or as server-sent events, and notices when the client leaves.

How much of a stream may be in transit is limited: the proxy between ingress and client accepts
everything at once, and reports what the client has taken (deployments/proxy.py). While more than
the limit is in transit, the ingress requests no further pieces and acknowledges none, so that the
replica pauses the request of a client that does not read.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping

from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from deployments.ingress.answers import json_text
from deployments.ingress.answers.choices import Answer
from deployments.ingress.answers.json_text import Body
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


async def cancel_if_disconnected(receive: Receive, answer: Coroutine[None, None, Body]) -> Body:
    """Awaits the answer, or cancels it and raises ClientDisconnect if the client disconnects first.

    Serve cancels the request of a client that disconnects, but misses a disconnect while it is
    passing on a message. For streams Starlette watches for the disconnect."""
    answering = asyncio.create_task(answer)
    disconnected = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((answering, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return answering.result()
    finally:
        answering.cancel()
        disconnected.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """A stream of server-sent events that closes its answer however it ends, even if it never
    started."""

    media_type = "text/event-stream"

    def __init__(
        self,
        answer: Answer,
        events: AsyncGenerator[str, None],
        window: BackpressureWindow,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(window.limited(events), headers=headers)
        self._answer = answer
        self._window = window

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # From ASGI 2.4 on Starlette does not call `receive` while it sends, but the backpressure
        # window depends on it.
        scope = {**scope, "asgi": {**scope.get("asgi", {}), "spec_version": "2.3"}}
        try:
            await super().__call__(scope, self._window.receiving(receive), send)
        finally:
            self._answer.close()


async def data_events(chunks: AsyncGenerator[Body, None]) -> AsyncGenerator[str, None]:
    """Chunks of completions and chats as server-sent events."""
    async for chunk in chunks:
        yield f"data: {await json_text.in_ascii(chunk)}\n\n"
    yield "data: [DONE]\n\n"


async def named_events(events: AsyncGenerator[Body, None]) -> AsyncGenerator[str, None]:
    """Events of a response, which have their types as names, as server-sent events."""
    async for event in events:
        yield f"event: {event['type']}\ndata: {await json_text.in_ascii(event)}\n\n"
        await asyncio.sleep(0)  # an event may repeat a large request, and comes after another one
