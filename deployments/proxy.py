"""Runs in Serve's HTTP proxies, where cluster/serve.env names it: bodies travel with the head.

A proxy hands the ingress only the head of a request; for the body, and then for whether the client
leaves, the ingress asks back: two calls to another process while the request is on its way. With
the body at hand both can wait. Without all this everything works, a little later.
"""

import asyncio

from ray.serve._private.common import RequestMetadata
from ray.serve._private.http_util import ASGIReceiveProxy
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY = "spindle.body"
"""Where a request's scope has its body, if that came in one piece."""
_ASK_AFTER_S = 0.2


def middlewares() -> list[Middleware]:
    return [Middleware(BodyAhead)]


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
    cancels its request, but not always (`EventStream` and `unless_left` in deployments/http.py)."""
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
