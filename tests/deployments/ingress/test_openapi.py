"""The OpenAPI document says what requests take, how errors look and how to send a key."""

import pytest

from deployments.ingress.http import make_http
from tests.deployments.local import local_api, make_config


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("with_keys", [False, True])
async def test_the_document_describes_every_field_the_errors_and_keys(with_keys: bool) -> None:
    config = make_config(api_keys={"tenant": "a key"} if with_keys else {})
    async with local_api(config) as (api, _):
        document = make_http(api).openapi()
    components = document["components"]
    assert {"HTTPValidationError", "ValidationError"}.isdisjoint(components["schemas"])
    for name in ("CompletionRequest", "ChatRequest", "ResponsesRequest"):
        for field, schema in components["schemas"][name]["properties"].items():
            assert schema.get("description"), f"{name}.{field}"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), f"{method} {path}"
            (error,) = operation["responses"]["default"]["content"].values()
            assert error["schema"]["$ref"].endswith("/ErrorAnswer")
            assert ("security" in operation) is with_keys
    schemes = components.get("securitySchemes", {})
    assert [one["scheme"] for one in schemes.values()] == (["bearer"] if with_keys else [])
