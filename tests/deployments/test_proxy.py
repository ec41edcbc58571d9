"""Bodies sent ahead with the head of their request, and reports of what clients have taken
(deployments/proxy.py in Serve's proxy, and its use in the ingress)."""

import asyncio
import json
import pickle
import re
from typing import Any

import pytest
from ray.serve._private.common import RequestMetadata
from ray.serve._private.http_util import ASGIReceiveProxy
from starlette.types import Message, Receive, Scope, Send

from deployments import ray_internals
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
    WrittenReports,
)
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
def test_a_body_in_one_piece_is_sent_ahead_and_none_is_lost(
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

    asyncio.run(BodyAhead(app)({**HEAD}, receive, send))
    assert seen == [ahead, *messages]


def test_client_messages_are_fetched_late_when_the_ingress_has_the_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Serve fetches them in a task of its own, made just before it calls the ingress."""
    fetches: list[RequestMetadata] = []

    async def fetch(request: RequestMetadata) -> bytes:
        fetches.append(request)
        return pickle.dumps([{"type": "http.disconnect"}])

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []

    async def serve(scope: Scope) -> None:
        async with local_api() as (api, _), asyncio.timeout(30):
            http = make_http(api)
            receive = ASGIReceiveProxy(scope, RequestMetadata("one", "one"), fetch)
            fetching = asyncio.create_task(receive.fetch_until_disconnect())
            await http(scope, receive, send)
        fetching.cancel()

    fields = b'{"model": "target", "prompt": "Count to 7", "max_tokens": 4, "stream": true}'
    monkeypatch.setattr(ray_internals, "_RECEIVE_DELAY_S", 60)
    asyncio.run(serve({**HEAD, BODY: fields}))
    assert sent[0]["status"] == 200
    assert b"[DONE]" in sent[-2]["body"]
    assert not fetches
    asyncio.run(serve({**HEAD}))
    assert fetches, "where the body has not come ahead"

    fetches.clear()
    sent.clear()
    monkeypatch.setattr(ray_internals, "_RECEIVE_DELAY_S", 0)
    endless = fields.replace(b"4,", b'400, "ignore_eos": true,').replace(
        b'"stream": true', b'"n": 1'
    )
    asyncio.run(serve({**HEAD, BODY: endless}))
    assert fetches
    assert not sent, "the client has left before its answer was whole"


def test_the_ingress_uses_a_body_sent_ahead_and_checks_its_size() -> None:
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
    assert asyncio.run(status(fields)) == 200
    assert asyncio.run(status(fields + b" " * 1024)) == 413


def test_what_a_client_has_taken_is_reported_among_its_messages() -> None:
    """Not what was sent: the client takes message after message, and stops after the 40th."""
    reports: list[int] = []
    taken = asyncio.Semaphore(40)
    leaves = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope[REPORTS_WRITTEN]
        assert await receive() == part(b"body")

        async def respond() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(100):
                await send({"type": "http.response.body", "body": b"%d" % number})

        responding = asyncio.create_task(respond())
        while (message := await receive())["type"] == WRITTEN:
            reports.append(message["messages"])
            if sum(reports) >= 40 - MESSAGES_PER_REPORT:
                leaves.set()
        assert message == {"type": "http.disconnect"}
        responding.cancel()

    messages = [part(b"body")]

    async def receive() -> Message:
        if not messages:
            await leaves.wait()
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await taken.acquire()

    asyncio.run(asyncio.wait_for(WrittenReports(app)({**HEAD}, receive, send), 30))
    assert 40 - MESSAGES_PER_REPORT <= sum(reports) <= 40
    assert min(reports) >= MESSAGES_PER_REPORT


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
def test_a_reader_that_takes_nothing_pauses_its_request(spec_version: str) -> None:
    async def serve() -> None:
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

    asyncio.run(asyncio.wait_for(serve(), 60))


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
def test_headers_that_serve_acts_on_are_taken_out_and_named(
    header: tuple[bytes, bytes], kept: bool
) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope)

    async def receive() -> Message:
        return part(b"")

    async def send(_message: Message) -> None: ...

    given = {**HEAD, "headers": [*HEAD["headers"], header]}
    asyncio.run(HeadersOfServe(app)(given, receive, send))
    (scope,) = seen
    assert (header in scope["headers"]) is kept
    assert HEAD["headers"][0] in scope["headers"]
    assert scope.get(TAKEN_OUT, []) == ([] if kept else [header[0].decode()])
