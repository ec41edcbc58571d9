"""Bodies sent ahead with the head of their request, and reports of what clients have taken
(deployments/proxy.py in Serve's proxy, and its use in the ingress)."""

import asyncio
import json
import re
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from deployments.ingress.answers.delivery import MAX_IN_TRANSIT
from deployments.ingress.http import make_http
from deployments.proxy import (
    BODY,
    MESSAGES_PER_REPORT,
    REPORTS_WRITTEN,
    TAKEN_OUT,
    WRITTEN,
    BodyAhead,
    HeadersOfServe,
)
from tests.deployments.local import local_api, make_config

pytestmark = pytest.mark.usefixtures("loop")

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
async def test_a_body_in_one_piece_is_sent_ahead_and_none_is_lost(
    messages: list[Message], ahead: bytes | None
) -> None:
    """Other applications behind the same proxy read it as ever."""
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, _send: Send) -> None:
        seen.append(scope.get(BODY))
        seen.extend([await receive() for _ in messages])

    incoming = list(messages)

    async def receive() -> Message:
        return incoming.pop(0)

    async def send(_message: Message) -> None: ...

    await BodyAhead(app)({**HEAD}, receive, send)
    assert seen == [ahead, *messages]


async def test_the_ingress_uses_a_body_sent_ahead_and_checks_its_size() -> None:
    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def status(body: bytes) -> int:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async with local_api(make_config(limits={"max_body_bytes": 1024})) as (api, _):
            await asyncio.wait_for(make_http(api)({**HEAD, BODY: body}, never, send), 30)
        return int(sent[0]["status"])

    fields = b'{"model": "target", "prompt": "Count to 7", "max_tokens": 4}'
    assert await status(fields) == 200
    assert await status(fields + b" " * 1024) == 413


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_reader_that_takes_nothing_pauses_its_request(spec_version: str) -> None:
    sent: list[bytes] = []
    inbox: asyncio.Queue[Message] = asyncio.Queue()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    async with local_api(make_config(limits={"unread_tokens": 16}), seconds=0.001) as (
        api,
        replicas,
    ):
        fields = (
            b'{"model": "target", "prompt": "Count to 7", "max_tokens": 480, "seed": 7,'
            b' "stream": true}'
        )
        inbox.put_nowait(part(fields))
        scope = {**HEAD, REPORTS_WRITTEN: True, "asgi": {"spec_version": spec_version}}
        serving = asyncio.create_task(make_http(api)(scope, inbox.get, send))
        async with asyncio.timeout(30):
            while not replicas.streams or (
                next(iter(replicas.streams.values())).unread_tokens <= 16
            ):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert len(sent) == MAX_IN_TRANSIT, "nothing more is handed to the proxy"
        assert next(iter(replicas.streams.values())).unread_tokens < 200, "paused"
        while not serving.done():
            inbox.put_nowait({"type": WRITTEN, "messages": MESSAGES_PER_REPORT})
            await asyncio.sleep(0.01)
    events = [json.loads(line) for line in re.findall(rb"data: (\{.*\})", b"".join(sent))]
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    async with local_api() as (api, _):
        whole = await api.generate(json.loads(fields) | {"stream": False})
    assert text == whole["choices"][0]["text"]


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ((b"x-request-id", b"one"), True),
        ((b"x-request-id", b"with space"), False),
        ((b"x-request-id", b"\xff"), False),
        ((b"x-request-id", b"a" * 129), False),
        ((b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), True),
        ((b"traceparent", b"\xff"), False),
        ((b"x-session-id", b"one"), False),
        ((b"X_Session_Id", b"one"), False),
        ((b"serve_multiplexed_model_id", b"one"), False),
        ((b"x-request-timeout-seconds", b"0.001"), False),
        ((b"x-request-disconnect-disabled", b"?1"), False),
        ((b"user-agent", b"caf\xe9"), True),
    ],
)
async def test_headers_that_serve_acts_on_are_taken_out_and_named(
    header: tuple[bytes, bytes], kept: bool
) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope)

    async def receive() -> Message:
        return part(b"")

    async def send(_message: Message) -> None: ...

    given = {**HEAD, "headers": [*HEAD["headers"], header]}
    await HeadersOfServe(app)(given, receive, send)
    (scope,) = seen
    assert (header in scope["headers"]) is kept
    assert HEAD["headers"][0] in scope["headers"]
    assert scope.get(TAKEN_OUT, []) == ([] if kept else [header[0].decode()])
