"""Runs in Serve's HTTP proxies, where cluster/serve.env names it.

Bodies travel with the head: a proxy hands the ingress only the head of a request; for the body, and
then for whether the client leaves, the ingress asks back: two calls to another process while the
request is on its way. With the body at hand both can wait.

And what clients have taken is told: a proxy accepts all that an ingress sends, so only here is it
known that one does not read. Without all this everything works, a little later, and clients that do
not read cost a proxy the rest of their answers in memory.
"""

import asyncio

from ray.serve._private.common import RequestMetadata
from ray.serve._private.http_util import ASGIReceiveProxy
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY = "spindle.body"
"""Where a request's scope has its body, if that came in one piece."""
TELLS = "spindle.tells_written"
"""In the scope of a request whose proxy sends WRITTEN."""
WRITTEN = "spindle.written"
"""The type of a message to the ingress: its client has taken so many more `messages`."""
TOLD_EVERY = 16
"""Messages: to tell takes a call between processes."""
_ASK_AFTER_S = 0.2


def middlewares() -> list[Middleware]:
    return [Middleware(TellsWritten), Middleware(BodyAhead)]


class TellsWritten:
    """Among what the client sends the ingress finds what the client has taken."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope[TELLS] = True
        untold, due = 0, asyncio.Event()
        coming: asyncio.Future[Message] | None = None

        async def written(message: Message) -> None:
            nonlocal untold
            await send(message)  # waits while the client's buffers are full
            if message["type"] == "http.response.body":
                untold += 1
                if untold >= TOLD_EVERY:
                    due.set()

        async def next_message() -> Message:
            nonlocal untold, coming
            coming = coming or asyncio.ensure_future(receive())
            telling = asyncio.create_task(due.wait())
            try:
                await asyncio.wait((coming, telling), return_when=asyncio.FIRST_COMPLETED)
            finally:
                telling.cancel()
            if coming.done():
                message, coming = coming, None
                return message.result()
            due.clear()
            count, untold = untold, 0
            return {"type": WRITTEN, "messages": count}

        try:
            await self._app(scope, next_message, written)
        finally:
            if coming is not None:
                coming.cancel()


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


def ask_later(receive: Receive) -> None:
    """For the ingress, which has the body. It asks all the same: when a client leaves, Serve also
    cancels its request, but not always (`EventStream` and `unless_left` in
    deployments/ingress/http.py)."""
    if not isinstance(receive, ASGIReceiveProxy):
        return
    ask = receive._receive_asgi_messages

    async def later(request: RequestMetadata) -> bytes:
        await asyncio.sleep(_ASK_AFTER_S)
        receive._receive_asgi_messages = ask
        return await ask(request)

    receive._receive_asgi_messages = later


def replay(first: Message, receive: Receive) -> Receive:
    """That message once more, then whatever comes."""
    messages = [first]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
