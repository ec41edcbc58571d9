"""Bounds on connections: slow and endless requests over real sockets to the server that Serve's
proxies run."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments import connections
from deployments.addresses import TRUSTED
from deployments.proxy import middlewares

pytestmark = pytest.mark.usefixtures("loop")

TIMEOUT_S = 0.5
HEAD_BYTES = 4096
CONNECTIONS = 64
OF_ONE_ADDRESS = 48
COMPLETE = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


SIZES = {"/short": 60_000, "/long": 200_000}
"""Answers that are sent at once: below what uvicorn holds without waiting, and above."""
ENDED = asyncio.Event()
"""Set when the client of an endless answer is gone."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers after the whole body: a megabyte, endlessly, or who the client is."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/client":
        client = scope["client"][0].encode()
        await send({"type": "http.response.body", "body": client})
        return
    if scope["path"] in SIZES:
        await send({"type": "http.response.body", "body": b"x" * SIZES[scope["path"]]})
        return
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
async def server(
    monkeypatch: pytest.MonkeyPatch, trusted: str = "", send_buffer: int | None = None
) -> AsyncIterator[int]:
    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", "restored behind the test")
    monkeypatch.setenv(connections.TIMEOUT, str(TIMEOUT_S))
    share = OF_ONE_ADDRESS / CONNECTIONS
    small = partial(connections.Bounds, head_bytes=HEAD_BYTES, address_share=share)
    monkeypatch.setattr(connections, "Bounds", small)
    monkeypatch.setattr(f"{__name__}.ENDED", asyncio.Event())
    monkeypatch.setitem(uvicorn.config.WS_PROTOCOLS, "auto", None)
    monkeypatch.setenv(connections.CONNECTIONS, str(CONNECTIONS))
    monkeypatch.setenv(TRUSTED, trusted)
    if not trusted:
        monkeypatch.delenv(TRUSTED)
    served: ASGIApp = app
    for layer in reversed(middlewares()):
        served = layer.cls(served, *layer.args, **layer.kwargs)
    with socket.socket() as bound:
        if send_buffer is not None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        bound.bind(("0.0.0.0", 0))
        running = uvicorn.Server(uvicorn.Config(served, lifespan="off", log_config=None))
        running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # as Serve
        serving = asyncio.create_task(running.serve(sockets=[bound]))
        while not running.started:
            await asyncio.sleep(0.01)
        yield bound.getsockname()[1]
        running.should_exit = True
        await serving


async def connect(port: int, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def answer_to(
    port: int, *parts: bytes, every_s: float = 0.0, source: str = "127.0.0.1"
) -> bytes:
    """What the server sends until it closes the connection; the parts are sent in turn."""
    reader, writer = await connect(port, source)
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
async def test_a_request_that_does_not_arrive_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch, parts: list[bytes], begins: bytes
) -> None:
    async with server(monkeypatch) as port:
        asked = (answer_to(port, *parts, every_s=TIMEOUT_S / 8) for _ in range(40))
        answers = await asyncio.gather(*asked)
    for answer in answers:
        assert answer.startswith(begins)
        assert bool(answer) == bool(begins)


@pytest.mark.parametrize(
    ("holders", "asker", "trusted", "refused"),
    [
        (["127.0.0.1"] * CONNECTIONS, "127.0.0.1", "127.0.0.1", True),
        ([f"127.0.1.{n}" for n in range(1, CONNECTIONS + 1)], "127.0.0.1", "", True),
        (["127.0.0.1"] * OF_ONE_ADDRESS, "127.0.0.1", "", True),
        (["127.0.0.1"] * 2 * CONNECTIONS, "127.0.0.2", "", False),
        (["127.0.0.1"] * (CONNECTIONS - 1), "127.0.0.1", "127.0.0.0/28", False),
    ],
    ids=["all", "all, of many addresses", "one address", "another address", "a trusted proxy"],
)
async def test_connections_beyond_the_bounds_are_refused_with_retry_after(
    monkeypatch: pytest.MonkeyPatch, holders: list[str], asker: str, trusted: str, refused: bool
) -> None:
    """Those of one address leave room for others, however many it opens."""
    request = COMPLETE.replace(b"host", b"connection: close\r\nhost")
    async with server(monkeypatch, trusted) as port:
        held = [await connect(port, holder) for holder in holders]
        first = await answer_to(port, request, source=asker)
        held.pop(0)[1].close()
        await asyncio.sleep(TIMEOUT_S / 4)
        second = await answer_to(port, request, source=asker)
        for _, writer in held:
            writer.close()
    assert first.startswith(b"HTTP/1.1 503" if refused else b"HTTP/1.1 200")
    assert (b"retry-after:" in first) is refused
    assert second.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("trusted", "forwarded", "client"),
    [
        ("", [b"192.0.2.7"], b"127.0.0.1"),
        ("127.0.0.2", [b"192.0.2.7"], b"127.0.0.1"),
        ("127.0.0.1", [b"192.0.2.7"], b"192.0.2.7"),
        ("127.0.0.0/8", [b"192.0.2.1, 192.0.2.7, 127.0.0.9"], b"192.0.2.7"),
        ("127.0.0.1, 192.0.2.0/24", [b"x, 2001:db8::1", b"192.0.2.1"], b"2001:db8::1"),
        ("127.0.0.1", [b"team-a"], b"127.0.0.1"),
        ("127.0.0.1", [b"192.0.2.7, \xff"], b"127.0.0.1"),
    ],
)
async def test_only_trusted_proxies_name_the_client_and_only_by_an_address(
    monkeypatch: pytest.MonkeyPatch, trusted: str, forwarded: list[bytes], client: bytes
) -> None:
    headers = b"".join(b"x-forwarded-for: " + value + b"\r\n" for value in forwarded)
    request = COMPLETE.replace(b"/", b"/client", 1).replace(b"host", headers + b"host")
    async with server(monkeypatch, trusted) as port:
        answer = await answer_to(port, request.replace(b"host", b"connection: close\r\nhost"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"\r\n" + client + b"\r\n" in answer


async def test_requests_sent_ahead_of_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each answer let tens of thousands more be read, which memory holds."""
    request = COMPLETE.replace(b"/", b"/client", 1)
    last = request.replace(b"host", b"connection: close\r\nhost")
    async with server(monkeypatch) as port:
        assert (await answer_to(port, request * 32 + last)).count(b"200 OK") == 33
        assert (await answer_to(port, request * 1000 + last)).count(b"200 OK") <= 65


@pytest.mark.parametrize(
    ("head", "begins"),
    [
        (b"GET /client HTTP/1.1\r\nhost: x\r\n", b"HTTP/1.1 200"),
        (b"POST /client HTTP/1.1\r\nhost: x\r\ncontent-length: 90\r\n", b"HTTP/1.1 400"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n", b"HTTP/1.1 400"),
    ],
)
async def test_a_request_to_upgrade_is_an_ordinary_one_whose_body_is_never_read_as_a_request(
    monkeypatch: pytest.MonkeyPatch, head: bytes, begins: bytes
) -> None:
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"
    smuggled = COMPLETE.replace(b"/", b"/client", 1).replace(b"host", b"connection: close\r\nhost")
    async with server(monkeypatch) as port:
        answer = await answer_to(port, head + upgrade, smuggled, every_s=TIMEOUT_S / 4)
    assert answer.startswith(begins)
    assert answer.count(b"HTTP/1.1 ") == (2 if head.startswith(b"GET") else 1)


async def test_a_client_that_takes_nothing_of_its_answer_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with server(monkeypatch) as port, asyncio.timeout(10 * TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(COMPLETE.replace(b"/", b"/endless", 1))
        await ENDED.wait()
        assert not reader.at_eof()


@pytest.mark.parametrize("paths", [["/short"], ["/long", "/short"]])
async def test_a_client_that_takes_nothing_of_answers_that_are_sent_is_left(
    monkeypatch: pytest.MonkeyPatch, paths: list[str]
) -> None:
    loop = asyncio.get_running_loop()
    async with server(monkeypatch, send_buffer=4096) as port, asyncio.timeout(10 * TIMEOUT_S):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            for path in paths:
                await loop.sock_sendall(client, COMPLETE.replace(b"/", path.encode(), 1))
                await asyncio.sleep(TIMEOUT_S / 8)
            while not connections.BoundedConnection.places._all:
                await asyncio.sleep(0.01)
            while connections.BoundedConnection.places._all:
                await asyncio.sleep(0.01)


async def test_a_client_that_takes_its_answer_slowly_is_not_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes longer than the limit for what the server holds back before it sends on."""
    loop = asyncio.get_running_loop()
    async with server(monkeypatch, send_buffer=4096) as port:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, COMPLETE)
            for _ in range(40):
                assert await loop.sock_recv(client, 2048)
                await asyncio.sleep(TIMEOUT_S / 10)


FEW_FILES = """
import asyncio, resource, socket, uvicorn
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from deployments.proxy import middlewares

async def served(scope, receive, send):
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})

middlewares()
bound = socket.create_server(("127.0.0.1", 0))
print(bound.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(served, lifespan="off", loop="uvloop")).run(sockets=[bound])
"""


def test_with_few_files_every_connection_is_answered() -> None:
    """In a process of its own, on the loop of Serve's proxies, which closes what has no file."""

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(COMPLETE)
        answer = await reader.read(12)
        writer.close()
        return answer

    async def ask_all(port: int) -> list[bytes]:
        return await asyncio.gather(*(ask(port) for _ in range(240)))

    command = [sys.executable, "-c", FEW_FILES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "may open 200 files, so it takes" in process.stdout.readline()
        answers = asyncio.run(ask_all(int(process.stdout.readline())))
        process.terminate()
    assert set(answers) == {b"HTTP/1.1 200", b"HTTP/1.1 503"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((connections.TIMEOUT, value) for value in ("soon", "0", "inf")),
        (TRUSTED, "*"),
        (TRUSTED, "127.0.0.1, a proxy"),
        (TRUSTED, "10.0.0.1/8"),
    ],
)
def test_bounds_that_are_none_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        connections.bounds({name: value})
