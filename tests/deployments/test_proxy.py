"""Bodies that go ahead with the head of their request (deployments/proxy.py in Serve's proxy)."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

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
