"""Each request that ends has one line in the log and one count, with what operators search for."""

import asyncio
import logging
import shlex
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.ingress.watching import prometheus_text
from deployments.metrics import COUNTERS, GAUGES, HISTOGRAMS
from deployments.replica.metrics import Metrics
from tests.deployments.ingress.test_ingress import App, http_app
from tests.deployments.local import LocalReplicas, Method, within

FIELDS: dict[str, Any] = {"model": "target", "prompt": "1, 2, 3,", "max_tokens": 20, "seed": 1}


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    """The fields of all lines so far."""
    texts = [record.getMessage().partition("request ended: ")[2] for record in caplog.records]
    return [dict(field.split("=", 1) for field in shlex.split(text)) for text in texts if text]


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "deployments")


def counts(text: str, family: str, label: str) -> dict[str, float]:
    """Values above 0, by label."""
    (found,) = [one for one in text_string_to_metric_families(text) if one.name == family]
    return {one.labels[label]: one.value for one in found.samples if one.value}


@within(http_app, seconds=0.002)
async def test_a_request_that_ends_has_one_line_with_its_numbers(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    body = (
        await app.client.post("/v1/completions", json={**FIELDS, "n": 2, "ignore_eos": True})
    ).json()
    (line,) = lines(caplog)
    assert line["request"] in body["id"]
    assert (line["tenant"], line["model"], line["status"]) == ("127.0.0.1", "target", "200")
    assert (line["outcome"], line["reason"]) == ("length", "-")
    assert (line["output_tokens"], line["choices"], line["attempts"]) == ("40", "2", "1")
    assert int(line["prompt_tokens"]) == body["usage"]["prompt_tokens"]
    spindle = [choice["spindle"] for choice in body["choices"]]
    assert int(line["drafted"]) == sum(one["drafted"] for one in spindle)
    rounds = sum(one["rounds_by_lane"]["near"] for one in spindle)
    assert f"near:{rounds}" in line["drafters"].split(",")
    ttft_s, tpot_s = ([one[name] for one in spindle] for name in ("ttft_s", "tpot_s"))
    assert float(line["ttft_s"]) == pytest.approx(min(ttft_s), abs=1e-5)
    assert float(line["tpot_s"]) == pytest.approx(max(tpot_s), abs=1e-5)
    text = caplog.records[-1].getMessage()
    assert f"request={line['request']} tenant=127.0.0.1 " in text
    metrics = (await app.client.get("/metrics")).text
    families = {one.name: one.samples for one in text_string_to_metric_families(metrics)}
    [count] = [
        one.value for one in families["spindle_response_seconds"] if one.name.endswith("count")
    ]
    assert count == 1
    assert families["spindle_tenant_tokens"] == []


@pytest.mark.parametrize("stream", [False, True])
@within(http_app, seconds=0.002)
async def test_a_client_that_leaves_is_in_the_log_with_the_requests_id(
    app: App, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    asked = {**FIELDS, "max_tokens": 400, "stream": stream}
    request = app.client.build_request("POST", "/v1/completions", json=asked)
    answering = asyncio.create_task(app.client.send(request, stream=True))
    while not app.replicas.streams:
        await asyncio.sleep(0.001)
    if stream:
        await (await answering).aclose()
    else:
        answering.cancel()
    async with asyncio.timeout(5):
        while not lines(caplog):
            await asyncio.sleep(0.01)
    (line,) = lines(caplog)
    assert (line["outcome"], line["status"]) == ("cancelled", "499")
    assert app.replicas.requests[0]["name"].startswith(line["request"])


@pytest.mark.parametrize(
    ("path", "fields", "key", "status", "reason"),
    [
        ("/v1/completions", {**FIELDS, "top_p": 2}, "key", 400, "top_p"),
        ("/v1/completions", {**FIELDS, "model": "gpt"}, "key", 404, "gpt"),
        ("/v1/completions", {**FIELDS, "prompt": "x" * 5000}, "key", 413, "bytes"),
        ("/v1/completions", FIELDS, "wrong", 401, "API key"),
    ],
)
@within(
    http_app,
    api_keys={"tenant": "key"},
    operators=["tenant"],
    limits={"max_body_bytes": 4096, "max_choices": 8},
)
async def test_a_refusal_has_one_line_with_its_reason_and_is_counted(
    app: App,
    caplog: pytest.LogCaptureFixture,
    path: str,
    fields: dict[str, Any],
    key: str,
    status: int,
    reason: str,
) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    assert (await app.client.post(path, json=fields, headers=headers)).status_code == status
    (line,) = lines(caplog)
    assert (line["status"], line["outcome"]) == (str(status), "refused")
    assert reason in line["reason"]
    assert line["tenant"] == ("-" if key == "wrong" else "tenant")
    assert (await app.client.get("/metrics")).status_code == 401
    text = (await app.client.get("/metrics", headers={"Authorization": "Bearer key"})).text
    assert counts(text, "spindle_responses", "status") == (
        {"401": 2} if status == 401 else {str(status): 1, "401": 1}
    )
    of_tenant = counts(text, "spindle_tenant_responses", "status")
    assert of_tenant == ({} if status == 401 else {str(status): 1})


@within(http_app, dies=lambda _: 3, limits={"resubmits": 1})
async def test_losses_of_replicas_are_in_line_and_counts(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await app.client.post("/v1/completions", json=FIELDS)).status_code == 503
    (line,) = lines(caplog)
    assert (line["status"], line["outcome"], line["attempts"]) == ("503", "failed", "2")
    assert "lost" in line["reason"]
    text = prometheus_text(app.api.metrics.families()).decode()
    assert "spindle_resubmissions_total 1.0" in text
    assert "spindle_replicas_lost_total 2.0" in text


@within(http_app)
async def test_metrics_have_the_series_of_all_replicas_that_answer(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_replicas = {name: Metrics(name, {"lane": "near"}, {}) for name in ("one", "two")}

    async def describe(call_args: Any) -> dict[str, int]:
        call_args["replicas"] = [*of_replicas, "lost"]
        return {"max_context": 512, "vocab_size": 2048}

    async def metrics(named: Any) -> list[Any]:
        return of_replicas[named["replica"]].families()

    monkeypatch.setattr(LocalReplicas, "describe", Method(describe))
    monkeypatch.setattr(LocalReplicas, "metrics", Method(metrics), raising=False)
    answer = await app.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {one.name: one for one in text_string_to_metric_families(answer.text)}
    for metric in (*COUNTERS, *HISTOGRAMS, *GAUGES):
        samples = families[f"spindle_{metric.name}"].samples
        assert {one.labels["replica"] for one in samples} == {"one", "two"}
        assert {one.value for one in samples} == {0.0}, metric.name
