"""What a client without a key learns: health and version, and nothing of tenants."""

import asyncio
from typing import Any

import grpc
import grpc.aio
from starlette.routing import Route

from cluster.config import GrpcConfig
from deployments.ingress.http import PATHS_WITHOUT_KEY, make_http
from deployments.ingress.pages import RESPONSES
from tests.deployments.ingress.test_grpc import HOST, KEY, free_port, served
from tests.deployments.ingress.test_ingress import App, run

TENANT = "a-name-of-a-tenant"
METHODS = ("GET", "POST", "OPTIONS", "HEAD")


def test_over_http() -> None:
    async def test(app: App) -> None:
        await app.ask(max_tokens=1)
        served = await app.client.get("/metrics", headers={"Authorization": f"Bearer {KEY}"})
        assert TENANT in served.text, "there is something to find out"
        paths = {route.path for route in make_http(app.api).routes if isinstance(route, Route)}
        for path in (*paths, "/none", "/redoc", "/docs/", "/%2fmetrics", "/metrics?a=1"):
            for method in METHODS:
                for key in ("", f"Bearer {TENANT}"):
                    answer = await app.client.request(method, path, headers={"Authorization": key})
                    seen = f"{dict(answer.headers)} {answer.text}"
                    assert TENANT not in seen.replace(f"Bearer {TENANT}", ""), (method, path)
                    if path not in {*PATHS_WITHOUT_KEY, *RESPONSES}:
                        assert answer.status_code == 401, (method, path)

    run(test, api_keys={TENANT: KEY})


def test_over_grpc() -> None:
    async def error(channel: grpc.aio.Channel, method: str, *metadata: tuple[str, Any]) -> str:
        answer = channel.unary_unary(method)(b"", metadata=metadata)
        return f"{await answer.code()} {await answer.details()} {await answer.trailing_metadata()}"

    async def test() -> None:
        config = GrpcConfig(port=free_port())
        async with (
            served(config),
            grpc.aio.insecure_channel(f"{HOST}:{config.port}") as channel,
        ):
            for method in ("/spindle.Spindle/Generate", "/spindle.Spindle/Stream"):
                for key in ("", "Bearer", "Bearer tenant", f"Basic {KEY}"):
                    found = await error(channel, method, ("authorization", key))
                    assert "UNAUTHENTICATED" in found
                    assert "tenant" not in found
            for method in ("/spindle.Spindle/None", "/grpc.reflection.v1.ServerReflection/Info"):
                assert "UNIMPLEMENTED" in await error(channel, method)

    asyncio.run(test())
