"""The gRPC server of the ingress over real channels: statuses, keys, sizes, health, and what
clients can hold."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cluster.config import GrpcConfig
from deployments import connections
from deployments.ingress import grpc_bounds
from deployments.ingress.grpc import GrpcServer
from tests.deployments.local import LocalReplicas, Method, local_api, make_config, within

pytestmark = pytest.mark.usefixtures("loop")

FIELDS: dict[str, Any] = {"model": "target", "prompt": "1, 2, 3,", "max_tokens": 8, "seed": 1}
KEY = "a key of a tenant"
BODY_BYTES = 4096
HOST = "127.0.0.1"

GrpcApp = tuple[grpc.aio.Channel, LocalReplicas]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


@asynccontextmanager
async def served(config: GrpcConfig, http_host: str = HOST) -> AsyncIterator[LocalReplicas]:
    limits = {"max_body_bytes": BODY_BYTES}
    app = make_config(api_keys={"tenant": KEY}, limits=limits)
    async with local_api(app, seconds=0.001) as (api, replicas):
        server = GrpcServer(api, config)
        await server.start(http_host)
        try:
            yield replicas
        finally:
            await server.stop(0.0)


@asynccontextmanager
async def grpc_app() -> AsyncIterator[GrpcApp]:
    config = GrpcConfig(port=free_port())
    async with (
        served(config) as replicas,
        grpc.aio.insecure_channel(f"{HOST}:{config.port}") as channel,
    ):
        yield channel, replicas


def call(channel: Any, method: str, fields: Any, key: str = KEY) -> Any:
    kind = channel.unary_unary if method == "Generate" else channel.unary_stream
    caller = kind(
        f"/spindle.Spindle/{method}", StringValue.SerializeToString, StringValue.FromString
    )
    text = fields if isinstance(fields, str) else json.dumps(fields)
    return caller(
        StringValue(value=text), timeout=30, metadata=[("authorization", f"Bearer {key}")]
    )


async def text_of(stream: Any) -> str:
    chunks = [json.loads(message.value) async for message in stream]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


WRONG: list[tuple[Any, str, grpc.StatusCode, str]] = [
    ({**FIELDS, "top_p": 2}, KEY, grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
    ({**FIELDS, "priority": 1}, KEY, grpc.StatusCode.PERMISSION_DENIED, "priority"),
    ({**FIELDS, "model": "gpt"}, KEY, grpc.StatusCode.NOT_FOUND, "gpt"),
    ("{", KEY, grpc.StatusCode.INVALID_ARGUMENT, "JSON"),
    ("[]", KEY, grpc.StatusCode.INVALID_ARGUMENT, "JSON"),
    ("x" * 2 * BODY_BYTES, KEY, grpc.StatusCode.INVALID_ARGUMENT, str(BODY_BYTES)),
    ("x" * 5 * BODY_BYTES, KEY, grpc.StatusCode.RESOURCE_EXHAUSTED, "larger"),
    (FIELDS, "no key", grpc.StatusCode.UNAUTHENTICATED, "API key"),
]
"""Fields, key, status, and what the message names."""


@within(grpc_app)
async def test_errors_are_grpc_statuses_that_name_the_field(app: GrpcApp) -> None:
    channel, _ = app
    for fields, key, code, named in WRONG:
        for answer in (
            call(channel, "Generate", fields, key),
            text_of(call(channel, "Stream", fields, key)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await answer
            assert raised.value.code() is code
            assert named.lower() in raised.value.details().lower()
    assert await text_of(call(channel, "Stream", FIELDS))


@within(grpc_app)
async def test_health_needs_no_key_and_tells_whether_a_replica_serves(
    app: GrpcApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    channel, _ = app
    check = health_pb2_grpc.HealthStub(channel).Check
    response = health_pb2.HealthCheckResponse
    for service in ("", "spindle.Spindle"):
        asked = health_pb2.HealthCheckRequest(service=service)
        assert (await check(asked)).status == response.SERVING
    with pytest.raises(grpc.aio.AioRpcError, match="no such service"):
        await check(health_pb2.HealthCheckRequest(service="another"))
    monkeypatch.setattr("deployments.ingress.replicas._NEXT_CALL_S", 0.01)
    monkeypatch.setattr(LocalReplicas, "describe", Method(unreachable))
    assert (await check(health_pb2.HealthCheckRequest())).status == response.NOT_SERVING


async def test_a_server_that_stops_is_not_healthy_and_refuses_calls() -> None:
    config = GrpcConfig(port=free_port())
    async with local_api(make_config(api_keys={"tenant": KEY}), seconds=0.001) as (api, _):
        server = GrpcServer(api, config)
        await server.start(HOST)
        await api.draining.drain()
        async with grpc.aio.insecure_channel(f"{HOST}:{config.port}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            found = await check(health_pb2.HealthCheckRequest())
            assert found.status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError, match="is stopping") as refused:
                await call(channel, "Generate", FIELDS)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await server.stop(0.0)


async def test_calls_without_a_message_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of all of one address."""
    monkeypatch.setenv(connections.TIMEOUT, "1")
    monkeypatch.setattr(grpc_bounds, "_WITHOUT_MESSAGE", 8)

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    async with grpc_app() as (channel, _):
        check = channel.stream_unary("/grpc.health.v1.Health/Check")
        codes = await asyncio.gather(*(check(nothing()).code() for _ in range(8)))
        assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 6
        assert codes.count(grpc.StatusCode.DEADLINE_EXCEEDED) == 2


async def test_a_stream_that_is_not_read_gives_its_places_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(connections.TIMEOUT, "1")
    async with grpc_app() as (channel, replicas):
        fields = {**FIELDS, "max_tokens": 480, "ignore_eos": True, "logprobs": 20}
        stream = call(channel, "Stream", fields)
        await stream.read()
        async with asyncio.timeout(20):
            while replicas.streams:
                await asyncio.sleep(0.05)
        stream.cancel()


async def test_it_listens_where_http_does_and_nowhere_else() -> None:
    async def reachable(host: str, port: int) -> bool:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            return False
        writer.close()
        return True

    config = GrpcConfig(port=free_port())
    async with served(config, "127.0.0.2"):
        assert await reachable("127.0.0.2", config.port)
        assert not await reachable(HOST, config.port)
    async with served(config.model_copy(update={"host": HOST}), "127.0.0.2"):
        assert await reachable(HOST, config.port)
        assert not await reachable("127.0.0.2", config.port)


async def test_it_waits_for_its_port() -> None:
    """Which the ingress before it has until it has drained."""
    config = GrpcConfig(port=free_port())
    async with local_api() as (api, _), served(config):
        second = GrpcServer(api, config)
        starting = asyncio.create_task(second.start(HOST))
        await asyncio.sleep(0.1)
        assert not starting.done()
    async with asyncio.timeout(10):
        await starting
    await second.stop(0.0)


@pytest.mark.parametrize("method", ["Generate", "Stream"])
@pytest.mark.parametrize(
    ("messages", "key", "code"),
    [
        ([b"\x0a\x01\xff"], KEY, grpc.StatusCode.INVALID_ARGUMENT),
        ([], KEY, grpc.StatusCode.INVALID_ARGUMENT),
        (None, "no key", grpc.StatusCode.UNAUTHENTICATED),
        (None, KEY, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
async def test_a_call_whose_message_is_wrong_or_never_comes_ends(
    method: str,
    messages: list[bytes] | None,
    key: str,
    code: grpc.StatusCode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None: the client sends nothing and does not say that nothing comes."""
    monkeypatch.setenv("SPINDLE_HTTP_TIMEOUT_S", "0.5")

    async def sent() -> AsyncIterator[bytes]:
        for message in messages or ():
            yield message
        if messages is None:
            await asyncio.sleep(60)

    async with grpc_app() as (channel, _):
        kind = channel.stream_unary if method == "Generate" else channel.stream_stream
        metadata = [("authorization", f"Bearer {key}")]
        answer = kind(f"/spindle.Spindle/{method}")(sent(), timeout=30, metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await (answer if method == "Generate" else answer.read())
        assert raised.value.code() is code
        assert await text_of(call(channel, "Stream", FIELDS))
