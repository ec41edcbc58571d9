"""The ingress with gRPC as a third interface beside HTTP and handles (docs/handles.md)."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import StringValue
from ray.serve.grpc_util import RayServegRPCContext

from deployments.ingress.api_keys import Client
from deployments.ingress.deployment import Ingress
from deployments.ingress.errors import ApiError

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class GrpcIngress(Ingress):
    """Serve calls the RPC methods by their names in spindle.proto."""

    async def Generate(  # noqa: N802 - the name on the wire
        self, request: StringValue, grpc_context: RayServegRPCContext
    ) -> StringValue:
        try:
            client = self._client(grpc_context)
            answer = await self._api.generate(_fields(request), client)
        except ApiError as error:
            answer = error.body()
        return _to_message(answer, grpc_context)

    async def Stream(  # noqa: N802 - the name on the wire
        self, request: StringValue, grpc_context: RayServegRPCContext
    ) -> AsyncGenerator[StringValue, None]:
        try:
            client = self._client(grpc_context)
            async with aclosing(self._api.stream(_fields(request), client)) as chunks:
                async for chunk in chunks:
                    yield _to_message(chunk, grpc_context)
        except ApiError as error:
            yield _to_message(error.body(), grpc_context)

    def _client(self, context: RayServegRPCContext) -> Client:
        metadata = dict(context.invocation_metadata())
        return self._api.keys.client(metadata.get("authorization", ""), context.peer())


def _fields(request: StringValue) -> dict[str, Any]:
    try:
        fields = json.loads(request.value)
    except (ValueError, RecursionError):
        raise ApiError(400, "the request is no JSON, or nested too deep") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the request is no JSON object")
    return fields


def _to_message(body: dict[str, Any], context: RayServegRPCContext) -> StringValue:
    """The body as a gRPC message. With an error status gRPC drops the message, so the details carry
    the error text."""
    if (error := body.get("error")) is not None:
        context.set_code(_CODES.get(error["status"], grpc.StatusCode.INTERNAL))
        context.set_details(error["message"])
    return StringValue(value=json.dumps(body))
