"""The page at /docs has every endpoint and field, and works without other hosts."""

import asyncio
import re
from typing import Any

import httpx

from deployments.ingress.http import make_http
from tests.deployments.local import local_api, serving


def test_the_documentation_page_is_whole_and_loads_nothing() -> None:
    async def inside() -> tuple[httpx.Response, dict[str, Any]]:
        async with local_api() as (api, _), serving(api) as url, httpx.AsyncClient() as http:
            schema = await http.get(f"{url}/openapi.json")
            return await http.get(f"{url}/docs"), schema.json()

    response, schema = asyncio.run(inside())
    assert response.status_code == 200
    assert "default-src 'none'" in response.headers["content-security-policy"]
    page = response.text
    assert not re.findall(r"https?://|<script|<link|<img|@import", page)
    for path in schema["paths"]:
        assert f"{path}</code>" in page, path
    for name, one in schema["components"]["schemas"].items():
        assert f'id="{name}"' in page
        for field in one.get("properties", {}):
            assert f"<code>{field}</code>" in page, field
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(re.findall(r'id="([^"]+)"', page))


def test_every_field_is_described() -> None:
    async def inside() -> dict[str, Any]:
        async with local_api() as (api, _):
            return make_http(api).openapi()

    schemas = asyncio.run(inside())["components"]["schemas"]
    undescribed = {
        f"{name}.{field}"
        for name, one in schemas.items()
        for field, of_field in one.get("properties", {}).items()
        if "description" not in of_field
    }
    assert not undescribed
