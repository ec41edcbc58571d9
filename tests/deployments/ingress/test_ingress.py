"""The HTTP interface over a coordinator in this process: keys, errors, stalled and lost clients."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from deployments.ingress import replicas as replicas_module
from deployments.ingress.api import Api
from deployments.ingress.requests.stream_requests import StreamRequestBuilder
from deployments.messages import Routed
from engine.protocol import Commit
from engine.request import ServedRequest
from tests.deployments.local import (
    DiesAfter,
    LocalReplicas,
    Method,
    counted,
    local_api,
    make_config,
    never_dies,
    serving,
    within,
)

pytestmark = pytest.mark.usefixtures("loop")
PROMPT = {"model": "target", "prompt": "Count to 7", "seed": 3, "ignore_eos": True}
CHAT = {"model": "target", "messages": [{"role": "user", "content": "Hello"}], "seed": 3}


@dataclass
class App:
    api: Api
    replicas: LocalReplicas
    client: httpx.AsyncClient

    async def ask(self, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
        return await self.client.post(path, json={**PROMPT, **fields})

    async def settled(self) -> None:
        """Waits until no replica serves anything."""
        for _ in range(200):
            if not self.replicas.streams:
                return
            await asyncio.sleep(0.005)
        pytest.fail("a stream is still being served")


@asynccontextmanager
async def http_app(
    seconds: float = 0.0, dies: DiesAfter = never_dies, **sections: Any
) -> AsyncIterator[App]:
    async with (
        local_api(make_config(**sections), dies, seconds) as (api, replicas),
        serving(api) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        yield App(api, replicas, client)


async def events(response: httpx.Response) -> list[Any]:
    """An event stream's bodies; the last line is [DONE]."""
    lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@within(http_app)
async def test_a_stream_has_the_text_of_the_whole_answer(app: App) -> None:
    fields: dict[str, Any] = {"max_tokens": 30, "logprobs": 2, "n": 2, "return_token_ids": True}
    whole = (await app.ask(**fields)).json()
    asked = {**PROMPT, **fields, "stream": True, "stream_options": {"include_usage": True}}
    async with app.client.stream("POST", "/v1/completions", json=asked) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *chunks, last = await events(response)
    assert (last["choices"], counted(last)) == ([], counted(whole))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert {chunk["id"] for chunk in [*chunks, last]} == {last["id"]}
    for choice in whole["choices"]:
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + ["length"]
        assert own[-1]["spindle"]["seed"] == choice["spindle"]["seed"]
        for field in ("tokens", "text_offset"):
            joined = [one for c in own for one in c["logprobs"][field]]
            assert joined == choice["logprobs"][field]
        assert [one for c in own for one in c["token_ids"]] == choice["token_ids"]
        assert len(own) < 30, "one event for each verdict, not for each token"


@within(http_app)
async def test_each_choice_has_statistics(app: App) -> None:
    choice = (await app.ask(max_tokens=40)).json()["choices"][0]
    reported = choice["spindle"]
    assert 0 < reported["rounds"] < 40
    assert 0 < reported["accepted"] <= reported["drafted"]
    assert reported["rounds"] + reported["accepted"] >= 40
    assert set(reported["rounds_by_lane"]) == {"near"}
    assert reported["ttft_s"] > 0
    assert reported["tpot_s"] > 0
    assert (reported["seed"], reported["attempts"], reported["replica"]) == (3, 1, "replica-0")
    plain = (await app.ask(max_tokens=40, speculation="off")).json()["choices"][0]
    assert plain["text"] == choice["text"], "the same text without speculation"
    assert plain["spindle"]["drafted"] == 0
    named = (await app.ask(max_tokens=40, speculation="near")).json()["choices"][0]
    decisions = [one["spindle"]["decision"] for one in (choice, plain, named)]
    assert decisions == [
        "drafters and depths chosen round by round, by what was expected to gain",
        "no drafts: the request asks for none",
        "drafter near: the request asks for it",
    ]


async def test_a_key_is_required_and_names_the_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_BETA", "two")
    async with http_app(api_keys={"alpha": "one", "beta": "env:KEY_OF_BETA"}) as app:
        for headers in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic one"}):
            answer = await app.client.post("/v1/completions", json={"bad": 1}, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert (await app.client.get("/v1/models", headers=headers)).status_code == 401
            assert (await app.client.get("/health", headers=headers)).status_code == 200
        app.client.headers["Authorization"] = "Bearer two"
        assert (await app.ask(max_tokens=2)).status_code == 200
        assert app.replicas.requests[-1]["tenant"] == "beta"


WRONG: list[tuple[bytes, int, str | None]] = [
    (b"{", 400, None),
    (b"", 400, None),
    (b'{"prompt": "x"}', 400, "model"),
    (b'{"model": "other", "prompt": "x"}', 404, "model"),
    (b'{"model": "target", "prompt": "x", "\\ud800": 1}', 400, None),
    (b'{"model": "\\ud800", "prompt": "x"}', 404, "model"),
    (b'{"model": "target", "prompt": "x", "seed": 1e999}', 400, "seed"),
    (b'{"model": "target", "prompt": "' + b"x" * 4096 + b'"}', 413, None),
]
"""A body, and the status and the field of its refusal."""


@within(http_app, limits={"max_body_bytes": 4096})
async def test_errors_have_openais_shape(app: App) -> None:
    for body, status, param in WRONG:
        answer = await app.client.post(
            "/v1/completions", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error["param"] == param
        assert isinstance(error["message"], str)
        assert error["type"]


@within(http_app)
async def test_a_wrong_path_or_method_is_told_the_way_out(app: App) -> None:
    """As by a client whose base URL lacks `/v1`."""
    missing = await app.client.post("/chat/completions", json=CHAT)
    assert missing.status_code == 404
    assert "GET /docs" in missing.json()["error"]["message"]
    wrong = await app.client.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "POST")
    assert "Allow" in wrong.json()["error"]["message"]
    redirected = await app.ask("/v1/completions/")
    assert redirected.status_code == 404, "not sent to what the request's Host names"


@within(http_app)
async def test_the_time_to_the_first_token_has_what_comes_before_the_replica(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt may wait for a thread that tokenizes."""
    original = StreamRequestBuilder.choices

    async def slow(*arguments: Any) -> Any:
        await asyncio.sleep(0.2)
        return await original(*arguments)

    monkeypatch.setattr(StreamRequestBuilder, "choices", slow)
    choice = (await app.ask(max_tokens=2)).json()["choices"][0]
    assert choice["spindle"]["ttft_s"] > 0.2


@within(http_app)
async def test_503_with_retry_after_while_starting(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_module, "_NEXT_CALL_S", 0.01)

    def starting(_routed: Routed) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(LocalReplicas, "describe", Method(starting))
    for answer in (await app.client.get("/health"), await app.ask()):
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]


@within(http_app, seconds=0.002, limits={"max_batch": 2, "max_waiting": 2, "client_share": 1.0})
async def test_all_choices_are_admitted_or_none(app: App) -> None:
    running = asyncio.create_task(app.ask(max_tokens=300))
    while not app.replicas.streams:
        await asyncio.sleep(0.001)
    answer = await app.ask(n=4, max_tokens=300)
    assert answer.status_code == 429
    assert answer.headers["Retry-After"]
    assert answer.json()["error"]["type"] == "rate_limit_error"
    for _ in range(200):
        if len(app.replicas.streams) == 1:
            break
        await asyncio.sleep(0.001)
    assert len(app.replicas.streams) == 1, "the choices that had room are cancelled"
    assert (await running).status_code == 200


@within(
    http_app,
    seconds=0.002,
    limits={"max_batch": 2, "max_waiting": 6},
    api_keys={"first": "key of first", "second": "key of second"},
)
async def test_no_client_takes_all_places(app: App) -> None:
    """8 places, of which each tenant may hold 6."""

    def asked(tenant: str, **fields: Any) -> Any:
        headers = {"Authorization": f"Bearer key of {tenant}"}
        body = {**PROMPT, "max_tokens": 300, **fields}
        return app.client.post("/v1/completions", json=body, headers=headers)

    never = await asked("first", prompt=["x"] * 7)
    assert (never.status_code, never.json()["error"]["param"]) == (400, "prompt")
    greedy = asyncio.create_task(asked("first", n=6))
    while len(app.replicas.streams) < 6:
        await asyncio.sleep(0.001)
    refused = await asked("first", max_tokens=1)
    assert refused.status_code == 429
    assert refused.headers["Retry-After"]
    assert (await asked("second", n=2, max_tokens=1)).status_code == 200
    assert (await greedy).status_code == 200
    assert (await asked("first", n=6, max_tokens=1)).status_code == 200, "given back"
    with pytest.raises(httpx.ReadTimeout):
        await app.client.post(
            "/v1/completions",
            json={**PROMPT, "max_tokens": 400, "n": 6},
            headers={"Authorization": "Bearer key of first"},
            timeout=0.3,
        )
    await app.settled()
    assert (await asked("first", n=6, max_tokens=1)).status_code == 200, "given back"


@within(http_app, limits={"full_logprobs": 100 * 21})
async def test_a_full_response_with_too_many_logprobs_is_refused_before_the_work(app: App) -> None:
    fields: dict[str, Any] = {"max_tokens": 100, "logprobs": 20, "n": 2}
    refused = await app.ask(**fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprobs")
    assert not app.replicas.requests
    assert (await app.ask(**{**fields, "n": 1})).status_code == 200
    asked = {**PROMPT, **fields, "stream": True}
    assert (await app.client.post("/v1/completions", json=asked)).status_code == 200
    repeating = {
        **{"model": "target", "input": "Hello", "top_logprobs": 20, "max_output_tokens": 101},
        "stream": True,
    }
    refused = await app.client.post("/v1/responses", json=repeating)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "top_logprobs")


@within(http_app, seconds=0.005)
async def test_a_client_that_leaves_is_cancelled_at_once(app: App) -> None:
    """Whether Serve cancels its request or not, which it does not always."""
    asked = {**PROMPT, "max_tokens": 400, "stream": True, "n": 2}
    async with app.client.stream("POST", "/v1/completions", json=asked) as response:
        await anext(response.aiter_lines())
        assert len(app.replicas.streams) == 2
    await app.settled()
    with pytest.raises(httpx.ReadTimeout):
        await app.client.post("/v1/completions", json={**asked, "stream": False}, timeout=0.3)
    assert len(app.replicas.requests) == 4
    await app.settled()
    reported = [name for heartbeat in app.replicas.heartbeats for name in heartbeat["left"]]
    assert sorted(reported) == sorted(one["name"] for one in app.replicas.requests)


@within(http_app, seconds=0.002, limits={"unread_tokens": 16})
async def test_replicas_are_sent_how_far_clients_have_read(app: App) -> None:
    asked = {**PROMPT, "max_tokens": 200, "stream": True}
    async with app.client.stream("POST", "/v1/completions", json=asked) as response:
        await events(response)
    name = app.replicas.requests[-1]["name"]
    read = [
        heartbeat["read"][name]
        for heartbeat in app.replicas.heartbeats
        if name in heartbeat["read"]
    ]
    assert read == sorted(read)
    assert read[-1] > 200 - 8, "reported within unread_tokens / 4"
    assert all(heartbeat["replica"] == "replica-0" for heartbeat in app.replicas.heartbeats)


@within(http_app)
async def test_nothing_is_raised_over_a_handle(app: App) -> None:
    api = app.api
    for fields, status in (
        ({}, 400),
        ({**PROMPT, "model": "other"}, 404),
        ({**PROMPT, "max_tokens": 10**6}, 400),
        ({**PROMPT, "stream": True}, 400),
        ({**CHAT, "functions": [1]}, 400),
    ):
        body = await api.generate(fields)
        assert body["error"]["status"] == status
    refused = [chunk async for chunk in api.stream({**PROMPT, "stream": False})]
    assert [chunk["error"]["param"] for chunk in refused] == ["stream"]
    assert json.loads(json.dumps(await api.generate(PROMPT)))["choices"]


async def test_a_defect_in_one_request_is_500_for_it_alone_without_internals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole and streamed, while others are served."""
    original = ServedRequest.commit

    def poisoned(served: ServedRequest, *verdict: Any) -> Commit:
        if served.seed == 666 and served.produced > 4:
            raise RuntimeError("at /srv/secret/path")
        return original(served, *verdict)

    async def streamed(app: App, seed: int) -> list[Any]:
        asked = {**PROMPT, "seed": seed, "stream": True, "max_tokens": 20}
        async with app.client.stream("POST", "/v1/completions", json=asked) as response:
            return await events(response)

    async with http_app() as app:
        undisturbed = (await app.ask(max_tokens=20)).json()["choices"][0]["text"]
        monkeypatch.setattr(ServedRequest, "commit", poisoned)
        (whole, *others), (failed, chunks) = await asyncio.gather(
            asyncio.gather(*(app.ask(max_tokens=20, seed=seed) for seed in (666, 3, 3, 3, 3))),
            asyncio.gather(*(streamed(app, seed) for seed in (666, 3))),
        )
        assert whole.status_code == 500
        for error in (whole.json()["error"], failed[-1]["error"]):
            assert (error["status"], error["type"], error["param"]) == (500, "internal_error", None)
            assert re.search(r"request [0-9a-f]{32}-0 failed", error["message"])
            assert "secret" not in error["message"]
        assert failed[-1]["error"]["message"].split()[1].removesuffix("-0") in failed[0]["id"]
        texts = ["".join(chunk["choices"][0]["text"] for chunk in chunks)]
        texts += [answer.json()["choices"][0]["text"] for answer in others]
        assert texts == [undisturbed] * 5
        names = [request["name"] for request in app.replicas.requests]
        assert len(names) == len(set(names)), "nothing is sent again"
        assert app.replicas.coordinator.alive


async def test_a_defect_of_the_ingress_is_500_in_openais_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("at /srv/secret/path")

    async with http_app() as app:
        monkeypatch.setattr(StreamRequestBuilder, "choices", broken)
        answers = [
            (await app.ask(max_tokens=2)).json(),
            await app.api.generate(PROMPT),
            [chunk async for chunk in app.api.stream(PROMPT)][-1],
        ]
        for answer in answers:
            assert (answer["error"]["status"], answer["error"]["type"]) == (500, "internal_error")
            assert "secret" not in answer["error"]["message"]
