"""The gRPC interface (deployments/spindle.proto, docs/handles.md), a server in the ingress.

Serve's own gRPC proxy listens on every interface and has no TLS, so it is not used.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from cluster.config import GrpcConfig
from deployments import connections
from deployments.ingress.admission.clients import Client
from deployments.ingress.answers import json_text
from deployments.ingress.answers.json_text import Body
from deployments.ingress.api import Api
from deployments.ingress.errors import ApiError

SERVICE = "spindle.Spindle"
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_RECEIVED = 4
"""Messages above this multiple of `limits.max_body_bytes` are refused by the gRPC library while
they arrive (RESOURCE_EXHAUSTED); those between are refused here, with a message that says why."""
_HEADER_BYTES = 65536
_IDLE_MS = 90_000
"""Connections without a call are closed after so long, as over HTTP."""
_CALLS_OF_A_CONNECTION = 1024
_BIND_AGAIN_S = 1.0
_HEALTH_PERIOD_S = 5.0

_LOG = logging.getLogger(__name__)


class GrpcServer:
    """Must be constructed on the event loop that it runs on."""

    def __init__(self, api: Api, config: GrpcConfig) -> None:
        self._api = api
        self._config = config
        self._max_bytes = api.config.limits.max_body_bytes
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _RECEIVED * self._max_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", _HEADER_BYTES),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.max_concurrent_streams", _CALLS_OF_A_CONNECTION),
                # Another process on this port would get a part of the calls.
                ("grpc.so_reuseport", 0),
            ]
        )
        self._arrival_s = connections.bounds(os.environ).timeout_s
        # A call has one message. It is read as a stream of messages, so that the key is checked
        # before it arrives, and it cannot take for ever.
        types = (None, StringValue.SerializeToString)
        methods = {
            "Generate": grpc.stream_unary_rpc_method_handler(self._generate, *types),
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream, *types),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, methods),)
        )
        self._health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._reporting: asyncio.Task[None] | None = None

    async def start(self, http_host: str) -> None:
        """Listens, as soon as the port is free: before a redeployment has drained, the ingress
        before this one has it."""
        host = self._config.host or http_host
        address = f"[{host}]:{self._config.port}" if ":" in host else f"{host}:{self._config.port}"
        warned = False
        while True:
            try:
                self._bind(address)
                break
            except RuntimeError as error:
                if not warned:
                    _LOG.warning("gRPC waits for its address %s: %s", address, error)
                warned = True
                await asyncio.sleep(_BIND_AGAIN_S)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()
        self._reporting = asyncio.create_task(self._report_health())
        _LOG.info("gRPC listens on %s", address)

    async def stop(self, drain_s: float) -> None:
        """Takes no further calls, and ends those that have not ended by themselves in time."""
        if self._reporting is not None:
            self._reporting.cancel()
        await self._server.stop(drain_s)

    def _bind(self, address: str) -> None:
        certificate, key = self._config.tls_certificate, self._config.tls_key
        if certificate is None or key is None:
            self._server.add_insecure_port(address)
            return
        pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
        self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))

    async def _report_health(self) -> None:
        while True:
            try:
                await self._api.ready()
                status = health_pb2.HealthCheckResponse.SERVING
            except ApiError:
                status = health_pb2.HealthCheckResponse.NOT_SERVING
            await self._set_health(status)
            await asyncio.sleep(_HEALTH_PERIOD_S)

    async def _set_health(self, status: int) -> None:
        for service in ("", SERVICE):
            await self._health.set(service, status)

    async def _generate(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> StringValue:
        async def answer(fields: Body, client: Client) -> StringValue:
            body = await self._api.generate(fields, client)
            return StringValue(value=await _text(body))

        return await self._answered(messages, context, answer)

    async def _stream(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[StringValue, None]:
        async def answer(fields: Body, client: Client) -> AsyncGenerator[Body, None]:
            return self._api.stream(fields, client)

        async with aclosing(await self._answered(messages, context, answer)) as chunks:
            async for chunk in chunks:
                try:
                    yield StringValue(value=await _text(chunk))
                except ApiError as error:
                    await _abort(context, error)

    async def _answered(
        self,
        messages: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext,
        answer: Callable[[Body, Client], Awaitable[Any]],
    ) -> Any:
        """What `answer` returns for the request's fields; an ApiError ends the call."""
        tenant = ""
        try:
            client = self._client(context)
            tenant = client.tenant
            return await answer(await self._fields(await self._message(messages), client), client)
        except ApiError as error:
            self._api.log.refused(error, tenant)
            await _abort(context, error)

    def _client(self, context: grpc.aio.ServicerContext) -> Client:
        metadata = dict(context.invocation_metadata() or ())
        authorization = str(metadata.get("authorization", ""))
        return self._api.keys.client(authorization, _address(context.peer()))

    async def _message(self, messages: AsyncIterator[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._arrival_s):
                return await anext(messages)
        except TimeoutError:
            raise ApiError(
                408, f"the request was not complete within {self._arrival_s:g} s"
            ) from None
        except StopAsyncIteration:
            raise ApiError(400, "the call has no message; send one") from None

    async def _fields(self, message: bytes, client: Client) -> dict[str, Any]:
        if len(message) > self._max_bytes:
            raise ApiError(413, f"the message is longer than {self._max_bytes} bytes")
        try:
            text = StringValue.FromString(message).value
        except DecodeError:
            raise ApiError(400, "the message is no google.protobuf.StringValue") from None
        fields = await self._api.reader.json(text.encode(), client.tenant)
        if not isinstance(fields, dict):
            raise ApiError(400, "the request is no JSON object")
        return fields


async def _text(body: Body) -> str:
    """The body as JSON; raises its error as ApiError."""
    if (error := body.get("error")) is not None:
        failure = ApiError(error["status"], error["message"])
        failure.logged = True
        raise failure
    return (await json_text.encode(body)).decode()


async def _abort(context: grpc.aio.ServicerContext, error: ApiError) -> None:
    code = _CODES.get(error.status, grpc.StatusCode.INTERNAL)
    await context.abort(code, error.body()["error"]["message"])


def _address(peer: str) -> str:
    """The address in `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return rest.rpartition(":")[0].strip("[]")
