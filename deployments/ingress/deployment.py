"""The Ingress deployment: the API over HTTP and by handle. It keeps running when replicas are
lost."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig


@serve.ingress()
class Ingress:
    def __init__(self, config: AppConfig, replica: DeploymentHandle) -> None:
        # Imported here, because tokenizers take seconds to import and building the application
        # needs none.
        from deployments.ingress.api import Api

        self._api = Api(config, replica)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor."""
        from deployments.ingress.http import make_http

        return make_http(self._api)

    async def generate(self, request: Mapping[str, Any], tenant: str = "") -> dict[str, Any]:
        """The whole response to a completion or chat request in OpenAI's format. An error is also
        returned as a body."""
        from deployments.ingress.api_keys import trusted

        return await self._api.generate(request, trusted(tenant))

    async def stream(
        self, request: Mapping[str, Any], tenant: str = ""
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The same as chunks of a stream."""
        from deployments.ingress.api_keys import trusted

        async for chunk in self._api.stream(request, trusted(tenant)):
            yield chunk
