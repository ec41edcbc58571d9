"""Bounds on connections: slow and endless requests over real sockets to the server that Serve's
proxies run."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from deployments import connections

TIMEOUT_S = 0.5
HEAD_BYTES = 4096
CONNECTIONS = 64
COMPLETE = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


ENDED = asyncio.Event()
"""Set when the client of an endless answer is gone."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers behind the whole body: a megabyte, or endlessly."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    part = {"type": "http.response.body", "body": b"x" * 16384, "more_body": True}
    if scope["path"] == "/endless":
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send(part)
            await asyncio.sleep(0)
        ENDED.set()
        return
    for _ in range(64):
        await send(part)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", "restored behind the test")
    monkeypatch.setenv(connections.TIMEOUT, str(TIMEOUT_S))
    monkeypatch.setenv(connections.HEAD_BYTES, str(HEAD_BYTES))
    monkeypatch.setenv(connections.CONNECTIONS, str(CONNECTIONS))
    connections.install()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        running = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # as Serve
        serving = asyncio.create_task(running.serve(sockets=[bound]))
        while not running.started:
            await asyncio.sleep(0.01)
        yield bound.getsockname()[1]
        running.should_exit = True
        await serving


async def answer_to(port: int, *parts: bytes, every_s: float = 0.0) -> bytes:
    """What the server sends until it closes the connection; the parts are sent in turn."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(reader.read())
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(every_s)
        return await asyncio.wait_for(answer, 10 * TIMEOUT_S)
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("parts", "begins"),
    [
        ([], b""),
        ([COMPLETE[:10]], b"HTTP/1.1 408"),
        ([COMPLETE[:-2], *[b"x: y\r\n"] * 6], b"HTTP/1.1 408"),
        ([POST, *[b"x"] * 6], b"HTTP/1.1 408"),
        ([COMPLETE[:-2] + b"x: " + b"y" * 2 * HEAD_BYTES], b"HTTP/1.1 431"),
        ([CHUNKED + b"0\r\nx: ", *[b"y" * HEAD_BYTES] * 3], b"HTTP/1.1 431"),
        ([CHUNKED + b"1;x=", *[b"y" * HEAD_BYTES] * 3], b"HTTP/1.1 431"),
    ],
    ids=[
        *("silent", "half a line", "slow headers", "slow body", "endless header"),
        *("endless trailer", "endless extension"),
    ],
)
def test_a_request_that_does_not_arrive_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch, parts: list[bytes], begins: bytes
) -> None:
    async def ask() -> list[bytes]:
        async with server(monkeypatch) as port:
            asked = (answer_to(port, *parts, every_s=TIMEOUT_S / 8) for _ in range(40))
            return await asyncio.gather(*asked)

    for answer in asyncio.run(ask()):
        assert answer.startswith(begins)
        assert bool(answer) == bool(begins)


def test_requests_behind_each_other_on_one_connection_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large bodies are no heads, and pauses between requests are bounded by Serve's own option."""
    last = COMPLETE.replace(b"host", b"connection: close\r\nhost")
    posts = [POST + b"x" * 100000] * 3

    async def ask() -> bytes:
        async with server(monkeypatch) as port:
            return await answer_to(port, *posts, last, every_s=2 * TIMEOUT_S)

    assert asyncio.run(ask()).count(b"200 OK") == 4


def test_connections_beyond_the_bound_are_refused_with_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask() -> tuple[bytes, bytes]:
        async with server(monkeypatch) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
            refused = await answer_to(port, COMPLETE)
            held.pop()[1].close()
            await asyncio.sleep(TIMEOUT_S / 4)
            served = await answer_to(port, COMPLETE.replace(b"host", b"connection: close\r\nhost"))
            for _, writer in held:
                writer.close()
            return refused, served

    refused, served = asyncio.run(ask())
    assert refused.startswith(b"HTTP/1.1 503")
    assert b"retry-after:" in refused
    assert served.startswith(b"HTTP/1.1 200")


def test_a_client_that_takes_nothing_of_its_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def left() -> bool:
        async with server(monkeypatch) as port, asyncio.timeout(10 * TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(COMPLETE.replace(b"/", b"/endless", 1))
            await ENDED.wait()
            return not reader.at_eof()

    assert asyncio.run(left())


@pytest.mark.parametrize("value", ["", "soon", "0", "-1", "inf", "nan"])
def test_a_bound_that_is_no_positive_number_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=connections.TIMEOUT):
        connections.bounds({connections.TIMEOUT: value})
