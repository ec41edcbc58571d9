"""The ingress stops: answers that are under way end, new requests are refused."""

import asyncio
from typing import Any

import pytest

from tests.deployments.ingress.test_ingress import PROMPT, App, events, http_app
from tests.deployments.local import within


async def begin(app: App, **fields: Any) -> asyncio.Task[list[Any]]:
    """A stream whose first token has arrived."""
    started = asyncio.Event()

    async def read() -> list[Any]:
        body = {**PROMPT, "stream": True, **fields}
        async with app.client.stream("POST", "/v1/completions", json=body) as response:
            started.set()
            return await events(response)

    reading = asyncio.create_task(read())
    await started.wait()
    return reading


@within(http_app, seconds=0.02)
async def test_a_stream_ends_whole_while_others_are_refused(app: App) -> None:
    stream = await begin(app, max_tokens=40)
    draining = asyncio.create_task(app.api.draining.drain())
    await asyncio.sleep(0.1)
    refused = await app.ask(max_tokens=2)
    assert refused.status_code == 503
    assert refused.headers["Retry-After"]
    assert "stopping" in refused.json()["error"]["message"]
    assert (await app.client.get("/health")).status_code == 503
    assert not draining.done()
    assert (await stream)[-1]["choices"][0]["finish_reason"] == "length"
    await asyncio.wait_for(draining, 5)


@pytest.mark.parametrize("n", [1, 2])
@within(http_app, seconds=0.02, scaling={"drain_s": 0.3})
async def test_a_stream_that_takes_too_long_ends_with_an_error(app: App, n: int) -> None:
    stream = await begin(app, max_tokens=400, n=n)
    await asyncio.wait_for(app.api.draining.drain(), 5)
    assert (await stream)[-1]["error"]["status"] == 503
    await app.settled()


@within(http_app)
async def test_a_request_that_was_on_its_way_when_the_stop_began_is_refused(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking = asyncio.Event()
    ready = app.api.ready

    async def slow_ready() -> Any:
        limits = await ready()
        checking.set()
        await asyncio.sleep(0.2)
        return limits

    monkeypatch.setattr(app.api, "ready", slow_ready)
    monkeypatch.setattr(app.api, "_limits", None)
    asking = asyncio.create_task(app.ask(max_tokens=2))
    await checking.wait()
    await asyncio.wait_for(app.api.draining.drain(), 5)
    assert (await asking).status_code == 503
