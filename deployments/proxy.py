"""Runs in Serve's HTTP proxies, where cluster/serve.env names it: bodies travel with the head.

A proxy hands the ingress only the head of a request; for the body the ingress asks back, which
takes a call to another process. Without this all works, a little later.
"""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY = "spindle.body"
"""Where a request's scope has its body, if that came in one piece."""


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


def replay(first: Message, receive: Receive) -> Receive:
    """That message once more, then whatever comes."""
    messages = [first]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
