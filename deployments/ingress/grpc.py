"""The gRPC interface (deployments/spindle.proto, docs/handles.md), a server in the ingress, with
grpc.health.v1.

Serve's own gRPC proxy listens on every interface and has no TLS, so it is not used.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from cluster.config import GrpcConfig
from deployments import connections
from deployments.ingress.answers import json_text
from deployments.ingress.answers.json_text import Body
from deployments.ingress.api import Api
from deployments.ingress.clients import Client
from deployments.ingress.errors import ApiError
from deployments.ingress.grpc_bounds import Arrivals, abort, peer_of

SERVICE = "spindle.Spindle"
HEALTH = "grpc.health.v1.Health"
"""Without `Watch`, whose calls any client could hold, without a key."""
_RECEIVED = 4
"""Messages above this multiple of `limits.max_body_bytes` are refused by the gRPC library while
they arrive (RESOURCE_EXHAUSTED); those between are refused here, with a message that says why."""
_HEADER_BYTES = 65536
_IDLE_MS = 90_000
"""Connections without a call are closed after so long, as over HTTP."""
_CALLS_OF_A_CONNECTION = 1024
_BIND_AGAIN_S = 1.0

_LOG = logging.getLogger(__name__)


class GrpcServer:
    """Must be constructed on the event loop that it runs on."""

    def __init__(self, api: Api, config: GrpcConfig) -> None:
        self._api = api
        self._config = config
        self._max_bytes = api.config.limits.max_body_bytes
        self._bounds = connections.bounds(os.environ)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _RECEIVED * self._max_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", _HEADER_BYTES),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.max_concurrent_streams", _CALLS_OF_A_CONNECTION),
                ("grpc.max_allowed_incoming_connections", self._bounds.connections),
                ("grpc.server_handshake_timeout_ms", int(1000 * self._bounds.timeout_s)),
                # Another process on this port would get a part of the calls.
                ("grpc.so_reuseport", 0),
            ]
        )
        self._arrivals = Arrivals(self._bounds)
        types = (None, StringValue.SerializeToString)
        check = grpc.stream_unary_rpc_method_handler(
            self._check, None, HealthCheckResponse.SerializeToString
        )
        methods = {
            "Generate": grpc.stream_unary_rpc_method_handler(self._generate, *types),
            "Stream": grpc.stream_stream_rpc_method_handler(self._stream, *types),
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, methods),
                grpc.method_handlers_generic_handler(HEALTH, {"Check": check}),
            )
        )

    async def start(self, http_host: str) -> None:
        """Listens, as soon as the port is free: before a redeployment has drained, the ingress
        before this one has it."""
        host = self._config.host or http_host
        address = f"[{host}]:{self._config.port}" if ":" in host else f"{host}:{self._config.port}"
        warned = False
        while True:
            try:
                self._server.add_insecure_port(address)
                break
            except RuntimeError as error:
                if not warned:
                    _LOG.warning("gRPC waits for its address %s: %s", address, error)
                warned = True
                await asyncio.sleep(_BIND_AGAIN_S)
        await self._server.start()
        _LOG.info("gRPC listens on %s", address)

    async def stop(self, drain_s: float) -> None:
        """Takes no further calls, and ends those that have not ended by themselves in time."""
        await self._server.stop(drain_s)

    async def _check(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> HealthCheckResponse:
        """Whether any replica can serve. The empty name is that of the whole server."""
        try:
            message = await self._arrivals.message(messages, context, peer_of(context))
            if HealthCheckRequest.FromString(message).service not in ("", SERVICE):
                raise ApiError(404, "there is no such service")
        except DecodeError:
            await abort(context, ApiError(400, "the message is no HealthCheckRequest"))
        except ApiError as error:
            await abort(context, error)
        with suppress(ApiError):
            await self._api.health()
            return HealthCheckResponse(status=HealthCheckResponse.SERVING)
        return HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)

    async def _generate(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> StringValue:
        async def answer(fields: Body, client: Client) -> StringValue:
            return StringValue(value=await _text(await self._api.generate(fields, client)))

        return await self._answered(messages, context, answer)

    async def _stream(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        async def answer(fields: Body, client: Client) -> AsyncGenerator[Body, None]:
            return self._api.stream(fields, client)

        try:
            async with aclosing(await self._answered(messages, context, answer)) as chunks:
                async for chunk in chunks:
                    message = StringValue(value=await _text(chunk))
                    async with asyncio.timeout(self._bounds.timeout_s):
                        await context.write(message)
        except TimeoutError:  # its places are free again, and only the call stays
            await abort(context, ApiError(408, "the client takes nothing of its answer"))
        except ApiError as error:
            await abort(context, error)

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
            message = await self._arrivals.message(messages, context, tenant)
            return await answer(await self._fields(message, client), client)
        except ApiError as error:
            self._api.log.refused(error, tenant)
            await abort(context, error)

    def _client(self, context: grpc.aio.ServicerContext) -> Client:
        metadata = dict(context.invocation_metadata() or ())
        authorization = str(metadata.get("authorization", ""))
        return self._api.keys.client(authorization, peer_of(context))

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
