"""The Ingress deployment: the API over HTTP, and by handle. It outlives replicas."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig


@serve.ingress()
class Ingress:
    def __init__(self, config: AppConfig, replica: DeploymentHandle) -> None:
        # Only here: tokenizers take seconds to import, and who builds the application needs none.
        from deployments.ingress.api import Api

        self._api = Api(config, replica)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve asks for it when the constructor has run."""
        from deployments.ingress.http import make_http

        return make_http(self._api)

    async def generate(self, request: Mapping[str, Any], tenant: str = "") -> dict[str, Any]:
        """A completion or a chat as OpenAI's API has it, whole. An error is a body, too."""
        return await self._api.generate(request, tenant)

    async def stream(
        self, request: Mapping[str, Any], tenant: str = ""
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The same in chunks."""
        async for chunk in self._api.stream(request, tenant):
            yield chunk
