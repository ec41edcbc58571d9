"""Which hosts requests may name, over HTTP: DNS rebinding, probes, and the config's own names."""

import pytest

from tests.deployments.ingress.test_attacks import raw
from tests.deployments.ingress.test_ingress import App, http_app
from tests.deployments.local import within

pytestmark = pytest.mark.usefixtures("loop")
KEYS = {"tenant": "key"}


async def status(app: App, path: str, *hosts: str) -> int:
    lines = [f"GET {path} HTTP/1.1", *(f"Host: {host}" for host in hosts)]
    sent = "\r\n".join([*lines, "Authorization: Bearer key", "Connection: close", "", ""])
    return int((await raw(app, sent.encode())).split()[1])


HOSTS = [
    ("localhost", True),
    ("127.0.0.1:8000", True),
    ("192.0.2.7:8000", True),
    ("[2001:db8::7]", True),
    ("spindle.example:443", True),
    ("rebound.example:8000", False),
    ("127.0.0.1.rebound.example", False),
    ("localhost@rebound.example", False),
    ("[", False),
]
"""Names, and whether they are allowed."""


@within(http_app, allowed_hosts=["Spindle.example"])
async def test_without_keys_only_addresses_and_known_names_are_served(app: App) -> None:
    for host, allowed in HOSTS:
        expected = 200 if allowed else 403
        for path in ("/v1/models", "/metrics", "/spindle/live", "/docs", "/openapi.json"):
            assert await status(app, path, host) == expected, (path, host)
        assert await status(app, "/v1/models", "localhost", host) == expected
        for path in ("/health", "/version", "/"):
            assert await status(app, path, host) == 200, (path, host)


@pytest.mark.parametrize(
    ("keys", "allowed", "expected"),
    [
        (KEYS, [], 200),
        (KEYS, ["spindle.example"], 403),
        ({}, ["*"], 200),
        (KEYS, ["*"], 200),
        ({}, [], 403),
    ],
)
async def test_keys_or_a_star_allow_all_hosts(
    keys: dict[str, str], allowed: list[str], expected: int
) -> None:
    async with http_app(api_keys=keys, allowed_hosts=allowed) as app:
        assert await status(app, "/v1/models", "other.example") == expected
