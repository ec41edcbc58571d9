"""The Ingress deployment: the API over HTTP, and by handle. It outlives replicas."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig
from deployments.api import Api, Body
from deployments.http import make_http


@serve.ingress()
class Ingress:
    def __init__(self, config: AppConfig, replica: DeploymentHandle) -> None:
        self._api = Api(config, replica)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve asks for it when the constructor has run."""
        return make_http(self._api)

    async def generate(self, request: Mapping[str, Any], tenant: str = "") -> Body:
        """A completion or a chat as OpenAI's API has it, whole. An error is a body, too."""
        return await self._api.generate(request, tenant)

    async def stream(
        self, request: Mapping[str, Any], tenant: str = ""
    ) -> AsyncGenerator[Body, None]:
        """The same in chunks."""
        async for chunk in self._api.stream(request, tenant):
            yield chunk
