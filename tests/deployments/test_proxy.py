"""Bodies that go ahead with the head of their request (deployments/proxy.py in Serve's proxy)."""

import asyncio
import pickle
from typing import Any

import pytest
from ray.serve._private.common import RequestMetadata
from ray.serve._private.http_util import ASGIReceiveProxy
from starlette.types import Message, Receive, Scope, Send

from deployments import proxy
from deployments.http import make_http
from deployments.proxy import BODY, BodyAhead
from tests.deployments.local import local_api, make_config

HEAD: Scope = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/v1/completions",
    "raw_path": b"/v1/completions",
    "root_path": "",
    "scheme": "http",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json")],
}


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize(
    ("messages", "ahead"),
    [
        ([part(b"short")], b"short"),
        ([part(b"")], b""),
        ([part(b"first, ", more=True), part(b"second")], None),
        ([{"type": "http.disconnect"}], None),
    ],
)
def test_a_body_in_one_piece_goes_ahead_and_none_is_lost(
    messages: list[Message], ahead: bytes | None
) -> None:
    """Other applications behind the same proxy read it as ever."""
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, _send: Send) -> None:
        seen.append(scope.get(BODY))
        seen.extend([await receive() for _ in messages])

    coming = list(messages)

    async def receive() -> Message:
        return coming.pop(0)

    async def send(_message: Message) -> None: ...

    asyncio.run(BodyAhead(app)({**HEAD}, receive, send))
    assert seen == [ahead, *messages]


def test_the_proxy_is_asked_late_when_the_ingress_has_the_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Serve asks in a task of its own, made just before it calls the ingress."""
    asked: list[RequestMetadata] = []

    async def ask(request: RequestMetadata) -> bytes:
        asked.append(request)
        return pickle.dumps([{"type": "http.disconnect"}])

    async def send(message: Message) -> None:
        said.append(message)

    said: list[Message] = []

    async def serve(scope: Scope) -> None:
        async with local_api() as (api, _), asyncio.timeout(30):
            http = make_http(api)
            receive = ASGIReceiveProxy(scope, RequestMetadata("one", "one"), ask)
            asking = asyncio.create_task(receive.fetch_until_disconnect())
            await http(scope, receive, send)
        asking.cancel()

    fields = b'{"model": "target", "prompt": "Count to 7", "max_tokens": 4, "stream": true}'
    monkeypatch.setattr(proxy, "_ASK_AFTER_S", 60)
    asyncio.run(serve({**HEAD, BODY: fields}))
    assert said[0]["status"] == 200
    assert b"[DONE]" in said[-2]["body"]
    assert not asked
    asyncio.run(serve({**HEAD}))
    assert asked, "where the body has not come ahead"

    asked.clear()
    said.clear()
    monkeypatch.setattr(proxy, "_ASK_AFTER_S", 0)
    endless = fields.replace(b"4,", b'400, "ignore_eos": true,').replace(
        b'"stream": true', b'"n": 1'
    )
    asyncio.run(serve({**HEAD, BODY: endless}))
    assert asked
    assert not said, "the client has left before its answer was whole"


def test_the_ingress_takes_a_body_that_came_ahead_and_bounds_it_too() -> None:
    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def status(body: bytes) -> int:
        said: list[Message] = []

        async def send(message: Message) -> None:
            said.append(message)

        async with local_api(make_config(limits={"max_body_bytes": 1024})) as (api, _):
            await asyncio.wait_for(make_http(api)({**HEAD, BODY: body}, never, send), 30)
        return int(said[0]["status"])

    fields = b'{"model": "target", "prompt": "Count to 7", "max_tokens": 4}'
    assert asyncio.run(status(fields)) == 200
    assert asyncio.run(status(fields + b" " * 1024)) == 413
