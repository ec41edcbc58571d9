"""grpc.health.v1, which answers without a key, so that no client may hold much of it.

The servicer of grpcio-health-checking bounds nothing, and holds a lock while it writes: one client
that reads nothing stops what it reports to all.
"""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from deployments.connections import Bounds
from deployments.ingress.errors import ApiError
from deployments.ingress.grpc_calls import Arrivals, abort
from deployments.ingress.grpc_connections import GrpcConnections, peer_of

_WATCHES = 1024
"""Calls of `Watch` at once, of all clients; each takes some 20 KB."""


class Health:
    """The service `service`, and under the empty name the whole server."""

    def __init__(
        self, service: str, arrivals: Arrivals, connections: GrpcConnections, bounds: Bounds
    ) -> None:
        self._services = ("", service)
        self._arrivals = arrivals
        self._connections = connections
        self._watches = bounds.places("watches", _WATCHES)
        self._status: HealthCheckResponse.ServingStatus = HealthCheckResponse.NOT_SERVING
        self._changed = asyncio.Event()

    def set(self, status: "HealthCheckResponse.ServingStatus") -> None:
        self._status = status
        self._changed.set()
        self._changed = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        types = (None, HealthCheckResponse.SerializeToString)
        return grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health",
            {
                "Check": grpc.stream_unary_rpc_method_handler(self._check, *types),
                "Watch": grpc.stream_stream_rpc_method_handler(self._watch, *types),
            },
        )

    async def _check(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> HealthCheckResponse:
        service = await self._service(messages, context)
        if service not in self._services:
            await abort(context, ApiError(404, "there is no such service"))
        return HealthCheckResponse(status=self._status)

    async def _watch(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        service = await self._service(messages, context)
        address, _ = peer_of(context)
        problem = self._watches.take(address)
        if problem is not None:
            await abort(context, ApiError(429, problem))
        try:
            await self._report(service, context)
        finally:
            self._watches.give_back(address)

    async def _report(self, service: str, context: grpc.aio.ServicerContext) -> None:
        reported = None
        while True:
            changed = self._changed
            known = service in self._services
            status = self._status if known else HealthCheckResponse.SERVICE_UNKNOWN
            if status != reported:
                await self._connections.write(context, HealthCheckResponse(status=status))
                reported = status
            await changed.wait()

    async def _service(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> str:
        try:
            address, _ = peer_of(context)
            message = await self._arrivals.message(messages, context, address)
            return HealthCheckRequest.FromString(message).service
        except DecodeError:
            await abort(context, ApiError(400, "the message is no HealthCheckRequest"))
        except ApiError as error:
            await abort(context, error)
