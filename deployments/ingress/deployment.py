"""The Ingress deployment: the API over HTTP, gRPC and by handle. It keeps running when replicas are
lost."""

import asyncio
import gc
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from subprocess import CalledProcessError
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig
from deployments import watchdog
from deployments.logs import forward_to_serve, print_line
from deployments.ray_internals import serve_details

if TYPE_CHECKING:
    from deployments.ingress.grpc import GrpcServer


_LOG = logging.getLogger(__name__)
_PROXY_HOOK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
_WITHOUT_ENVIRONMENT = (
    "Spindle: Ray runs without cluster/serve.env: SIGTERM and Ctrl+C cut answers off, and nothing "
    "bounds connections; `make serve` sets what that file has"
)


@serve.ingress()
class Ingress:
    def __init__(self, config: AppConfig, replica: DeploymentHandle) -> None:
        # Imported here, because tokenizers take seconds to import and building the application
        # needs none.
        from deployments.ingress.api import Api

        forward_to_serve()
        self._config = config
        self._api = Api(config, replica)
        self._grpc: GrpcServer | None = None
        loop = asyncio.get_running_loop()
        self._starting = loop.create_task(self._start())
        self._exporting = loop.create_task(self._api.metrics.keep_exported())
        self._watching = loop.create_task(self._api.readiness.clock.run())
        # Or the garbage collector, which a large request sets going, would walk through all modules
        # and the tokenizer, too: for half a second.
        gc.freeze()

    async def _start(self) -> None:
        try:
            await asyncio.to_thread(watchdog.start)
        except (OSError, CalledProcessError) as error:
            _LOG.warning("this application will not end if Ray is killed: %s", error)
        if _PROXY_HOOK not in os.environ:
            print_line(_WITHOUT_ENVIRONMENT)
        if self._config.grpc is None:
            return
        from deployments.ingress.grpc import GrpcServer

        self._grpc = GrpcServer(self._api, self._config.grpc)
        details = await asyncio.to_thread(serve_details)
        await self._grpc.start(details.http_options.host)

    async def __del__(self) -> None:
        """Called by Serve when this ingress stops, after its calls over HTTP and by handle."""
        self._starting.cancel()
        self._exporting.cancel()
        self._watching.cancel()
        if self._grpc is not None:
            await self._grpc.stop(self._config.scaling.drain_s)

    async def drain(self) -> None:
        """Refuses requests from now on, and returns when none is under way
        (deployments/stopping.py)."""
        await self._api.draining.drain()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        from deployments.ingress.http import make_http

        return make_http(self._api)

    async def generate(self, request: Mapping[str, Any], tenant: str = "") -> dict[str, Any]:
        """The whole response to a completion or chat request in OpenAI's format. An error is also
        returned as a body."""
        from deployments.ingress.clients import trusted

        return await self._api.generate(request, trusted(tenant))

    async def stream(
        self, request: Mapping[str, Any], tenant: str = ""
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The same as chunks of a stream."""
        from deployments.ingress.clients import trusted

        async for chunk in self._api.stream(request, trusted(tenant)):
            yield chunk
