"""What a client without a key learns: health and version, and nothing of tenants."""

from typing import Any

from starlette.routing import Route

from deployments.ingress.http import PATHS_WITHOUT_KEY, make_http
from deployments.ingress.pages import RESPONSES
from tests.deployments.ingress.test_grpc import KEY, GrpcApp, grpc_app
from tests.deployments.ingress.test_ingress import App, http_app
from tests.deployments.local import within

TENANT = "a-name-of-a-tenant"
METHODS = ("GET", "POST", "OPTIONS", "HEAD")


@within(http_app, api_keys={TENANT: KEY}, operators=[TENANT])
async def test_over_http(app: App) -> None:
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


@within(grpc_app)
async def test_over_grpc(app: GrpcApp) -> None:
    channel, _ = app

    async def error(method: str, *metadata: tuple[str, Any]) -> str:
        answer = channel.unary_unary(method)(b"", metadata=metadata)
        return f"{await answer.code()} {await answer.details()} {await answer.trailing_metadata()}"

    for method in ("/spindle.Spindle/Generate", "/spindle.Spindle/Stream"):
        for key in ("", "Bearer", "Bearer tenant", f"Basic {KEY}"):
            found = await error(method, ("authorization", key))
            assert "UNAUTHENTICATED" in found
            assert "tenant" not in found
    for method in ("/spindle.Spindle/None", "/grpc.reflection.v1.ServerReflection/Info"):
        assert "UNIMPLEMENTED" in await error(method)
