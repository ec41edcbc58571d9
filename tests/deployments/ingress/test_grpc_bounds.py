"""What clients without a key can hold of the gRPC server: watches, calls and connections."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cluster.config import GrpcConfig
from deployments import connections
from deployments.ingress import grpc as grpc_server
from deployments.ingress import grpc_bounds
from tests.deployments.ingress.test_grpc import FIELDS, HOST, KEY, free_port, served
from tests.deployments.local import LocalReplicas, Method

ALL, OF_ONE_ADDRESS = 8, 4
OTHER_HOST = "127.0.0.2"
REQUEST = health_pb2.HealthCheckRequest()
SERVING = health_pb2.HealthCheckResponse.SERVING
SETTINGS, HEADERS, DATA = 4, 1, 0
END_HEADERS, END_STREAM = 4, 1
NONE: Mapping[str, str] = MappingProxyType({})

Test = Callable[[int, grpc.aio.Channel], Awaitable[None]]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.ADDRESS_SHARE, str(OF_ONE_ADDRESS / ALL))
    monkeypatch.setattr(grpc_server, "_WATCHES", ALL)
    monkeypatch.setattr(grpc_bounds, "_WITHOUT_MESSAGE", ALL)
    monkeypatch.setattr(grpc_bounds, "_EVERY_S", 0.1)


def run(test: Test) -> None:
    async def inside() -> None:
        config = GrpcConfig(port=free_port())
        async with (
            asyncio.timeout(30),
            served(config),
            grpc.aio.insecure_channel(f"{HOST}:{config.port}") as channel,
        ):
            await test(config.port, channel)

    asyncio.run(inside())


async def watching(channel: grpc.aio.Channel) -> Any:
    watch = health_pb2_grpc.HealthStub(channel).Watch(REQUEST)
    await watch.read()
    return watch


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2."""
    return b"".join(
        (len(payload).to_bytes(3, "big"), bytes((kind, flags)), stream.to_bytes(4, "big"), payload)
    )


def call(path: str, stream: int, message: bytes, metadata: Mapping[str, str] = NONE) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
        **metadata,
    }
    head = b"".join(
        b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in fields.items()
    )
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return frame(HEADERS, END_HEADERS, stream, head) + frame(DATA, END_STREAM, stream, body)


@asynccontextmanager
async def raw(port: int, source: str, sent: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    """A connection whose client lets the server send nothing in any call."""
    window = (4).to_bytes(2, "big") + (0).to_bytes(4, "big")
    reader, writer = await asyncio.open_connection(HOST, port, local_addr=(source, 0))
    try:
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, window) + sent)
        yield reader
    finally:
        writer.close()


async def is_closed(reader: asyncio.StreamReader, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            while await reader.read(4096):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_watches_of_one_address_are_bounded() -> None:
    async def test(_port: int, channel: grpc.aio.Channel) -> None:
        held = [await watching(channel) for _ in range(OF_ONE_ADDRESS)]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await watching(channel)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "watches of one address" in str(raised.value.details())
        assert await health_pb2_grpc.HealthStub(channel).Check(REQUEST)
        held.pop().cancel()
        await asyncio.sleep(0.2)
        await watching(channel)

    run(test)


def test_a_watch_that_is_not_read_ends_and_holds_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(connections.TIMEOUT, "1")
    monkeypatch.setattr("deployments.ingress.grpc._HEALTH_PERIOD_S", 0.1)
    ready = asyncio.Event()
    describe = LocalReplicas.describe.fget  # type: ignore[attr-defined]

    def described(replicas: LocalReplicas) -> Method:
        async def answer(routed: Any) -> Any:
            await ready.wait()
            return await describe(replicas)._call(routed)

        return Method(lambda routed: asyncio.create_task(answer(routed)))

    async def test(port: int, channel: grpc.aio.Channel) -> None:
        watch = call("/grpc.health.v1.Health/Watch", 1, REQUEST.SerializeToString())
        async with raw(port, HOST, watch):
            await asyncio.sleep(0.3)
            ready.set()
            following = health_pb2_grpc.HealthStub(channel).Watch(REQUEST)
            while (await following.read()).status != SERVING:
                pass
            await asyncio.sleep(1.5)
            for _ in range(OF_ONE_ADDRESS - 1):
                await watching(channel)

    monkeypatch.setattr(LocalReplicas, "describe", property(described))
    run(test)


@pytest.mark.parametrize("method", ["Generate", "Stream"])
def test_a_call_whose_answer_is_not_read_ends(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.TIMEOUT, "1")
    message = StringValue(value=json.dumps(FIELDS)).SerializeToString()
    key = {"authorization": f"Bearer {KEY}"}

    async def test(port: int, _channel: grpc.aio.Channel) -> None:
        asked = call(f"/spindle.Spindle/{method}", 1, message, key)
        async with raw(port, HOST, asked) as reader:
            assert await is_closed(reader, 10)

    run(test)


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_health_calls_without_a_message_are_few_and_end(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(connections.TIMEOUT, "1")

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    async def code(channel: grpc.aio.Channel) -> grpc.StatusCode:
        answer = channel.stream_stream(f"/grpc.health.v1.Health/{method}")(nothing())
        return await answer.code()

    async def test(_port: int, channel: grpc.aio.Channel) -> None:
        codes = await asyncio.gather(*(code(channel) for _ in range(ALL)))
        assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == ALL - OF_ONE_ADDRESS
        assert codes.count(grpc.StatusCode.DEADLINE_EXCEEDED) == OF_ONE_ADDRESS
        assert await health_pb2_grpc.HealthStub(channel).Check(REQUEST)

    run(test)


def test_connections_of_one_address_and_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(connections.CONNECTIONS, str(ALL))

    async def test(port: int, _channel: grpc.aio.Channel) -> None:
        async with raw(port, HOST) as first, raw(port, HOST) as second, raw(port, HOST) as third:
            one = (first, second, third)
            async with raw(port, HOST) as fourth, raw(port, HOST) as fifth:
                closed = [await is_closed(each, 0.5) for each in (*one, fourth, fifth)]
                assert closed.count(True) == 1
                async with raw(port, OTHER_HOST) as other:
                    assert not await is_closed(other, 0.5)
        sources = [f"127.0.1.{number}" for number in range(1, ALL + 3)]
        held = [raw(port, source) for source in sources]
        closed = await asyncio.gather(*(_closed(each) for each in held))
        assert closed.count(False) == ALL

    async def _closed(connection: Any) -> bool:
        async with connection as reader:
            return await is_closed(reader, 1.0)

    run(test)
