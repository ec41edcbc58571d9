"""What Ray's metrics endpoint shows is what clients received."""

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import ray
import yaml
from prometheus_client.parser import text_string_to_metric_families
from ray import serve
from ray._private.metrics_agent import PrometheusServiceDiscoveryWriter
from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE

from deployments.metrics import ACCEPTED, HISTOGRAMS, INGRESS_HISTOGRAMS, OF_INGRESS, OF_REPLICA
from tests.dashboards.promtool import ALERTS, BOARDS, ROOT, exported, program, queries
from tests.deployments.serving import ARGS, METRICS_URL, PROMPT, URL, application, eventually

PROMETHEUS_PORT = 8240
STREAMS = 8
DRAFTERS = [
    {"name": "tiny", "model": "zoo/tiny", "placement": "actor"},
    {"name": "tasks", "model": "zoo/tasks", "placement": "inline"},
]
KEYS = {"team": "a key without further rights", "operator": "a key that sees all"}
Samples = dict[str, float]


@pytest.fixture(scope="module")
def app() -> Iterator[serve.handle.DeploymentHandle]:
    args = {
        **ARGS,
        "drafters": DRAFTERS,
        "slo_classes": {"patient": {"ttft_ms": 60_000}},
        "api_keys": KEYS,
        "operators": ["operator"],
    }
    with application(args, fresh_cluster=True):
        yield serve.get_app_handle("spindle")


def scrape(label: str = "") -> Samples:
    """Our samples by name, or by name and the value of one label, summed over the others."""
    text = urllib.request.urlopen(METRICS_URL, timeout=10).read().decode()
    return summed(text, "ray_spindle_", label)


def over_http(label: str = "") -> Samples:
    """The same of `/metrics`."""
    asked = urllib.request.Request(
        f"{URL}/metrics", headers={"Authorization": f"Bearer {KEYS['operator']}"}
    )
    text = urllib.request.urlopen(asked, timeout=10).read().decode()
    return summed(text, "spindle_", label) | summed(text, "vllm:", label)


def summed(text: str, prefix: str, label: str) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(prefix):
                name = sample.name.removeprefix(prefix)
                key = f"{name}/{sample.labels[label]}" if label in sample.labels else name
                samples[key] = samples.get(key, 0.0) + sample.value
    return samples


def ask(app: serve.handle.DeploymentHandle, seed: int) -> dict[str, Any]:
    fields = {"model": "target", "prompt": PROMPT, "max_tokens": 30, "seed": seed}
    slo: Any = "patient" if seed % 2 else {"tpot_ms": 1e-3}
    answer: dict[str, Any] = app.generate.remote({**fields, "slo": slo}).result(timeout_s=60)
    return answer


def test_every_series_is_there_before_the_first_request(app: serve.handle.DeploymentHandle) -> None:
    assert over_http().keys() >= exported(prefix="").keys()
    eventually(lambda: scrape().keys() >= exported(prefix="").keys(), "all names are there")
    for one in (*HISTOGRAMS, *INGRESS_HISTOGRAMS):
        bounds = {f"{one.name}_bucket/{float(bound)}" for bound in one.bounds}
        assert scrape("le").keys() >= bounds | {f"{one.name}_bucket/+Inf"}
    moved = {name for name, value in scrape().items() if value}
    # The warm-up runs forward passes, and all KV blocks are free.
    of_warm_up = ("forward", "busy", "idle", "predict", "kv_blocks")
    assert {name for name in moved if not name.startswith(of_warm_up)} == set()


def test_the_counts_are_what_clients_received(app: serve.handle.DeploymentHandle) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(lambda seed: ask(app, seed), range(STREAMS)))
    assert not any("error" in answer for answer in answers), answers
    received = sum(answer["usage"]["completion_tokens"] for answer in answers)
    mine = [answer["choices"][0]["spindle"] for answer in answers]

    eventually(
        lambda: scrape().get("ttft_seconds_count", 0) == STREAMS, "the last request is counted"
    )
    eventually(lambda: scrape()["committed_tokens_total"] == received, "all tokens are counted")
    # The ingress exports at other times than the replica.
    eventually(
        lambda: scrape().get("response_seconds_count", 0) == STREAMS, "all responses are counted"
    )
    samples = scrape()
    assert samples["rounds_total"] == sum(one["rounds"] for one in mine)
    assert samples["verified_tokens_total"] == sum(one["drafted"] for one in mine)
    assert samples["accepted_tokens_total"] == sum(one["accepted"] for one in mine)
    by_accepted = scrape("accepted")
    accepted_by_rounds = [
        int(number) * by_accepted.get(f"rounds_total/{number}", 0) for number in ACCEPTED[:-1]
    ]
    assert by_accepted["rounds_total/9+"] == 0
    assert sum(accepted_by_rounds) == samples["accepted_tokens_total"]
    by_position = scrape("position")
    # A chain's first draft token is accepted in each round that accepts any.
    any_accepted = samples["rounds_total"] - by_accepted["rounds_total/0"]
    assert by_position["accepted_tokens_total/1"] == any_accepted
    assert 0 < samples["expected_tokens_total"] < samples["verified_tokens_total"]
    found = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert samples["cached_tokens_total"] == sum(found)
    for name in ("requests_total", "prompts_total", "queue_seconds_count", "tpot_seconds_count"):
        assert samples[name] == STREAMS, name
    assert samples["latency_seconds_count"] == samples["response_seconds_count"] == STREAMS
    assert samples["slot_seconds_total"] <= samples["latency_seconds_sum"]
    assert samples["latency_seconds_sum"] <= samples["response_seconds_sum"]
    eventually(lambda: scrape("state").get("kv_blocks/cached", 0) > 0, "prompts are cached")
    eventually(lambda: scrape()["running"] == scrape()["waiting"] == 0, "nothing runs")

    by_host = scrape("host")
    assert by_host["busy_seconds_total/coordinator"] > 0
    for host in ("verifier", "tiny"):
        assert by_host[f"busy_seconds_total/{host}"] > 0
        assert by_host[f"idle_seconds_total/{host}"] > 0
    vllm = "spec_decode_num_"
    http = over_http()
    assert 0 < http[f"{vllm}drafts_total"] < samples["rounds_total"]
    assert http[f"{vllm}draft_tokens_total"] == samples["verified_tokens_total"]
    assert http[f"{vllm}accepted_tokens_total"] == samples["accepted_tokens_total"]
    by_position = over_http("position")
    for place in range(5):
        ours = by_position[f"accepted_tokens_total/{place + 1}"]
        assert by_position[f"{vllm}accepted_tokens_per_pos_total/{place}"] == ours
    for label in ("model_name", "engine"):
        assert f"{vllm}accepted_tokens_total" not in over_http(label), "it has the label"

    # Even seeds have an SLO that cannot be met.
    by_kept = scrape("kept")
    assert by_kept["promises_total/yes"] == by_kept["promises_total/no"] == STREAMS / 2
    by_class = scrape("slo_class")
    assert by_class["promises_total/patient"] == by_class["promises_total/other"] == STREAMS / 2


def test_a_prometheus_with_our_alerts_answers_every_query_of_the_boards(
    app: serve.handle.DeploymentHandle, tmp_path: Path
) -> None:
    binary = program("prometheus")
    # Ray's own writer, which runs only beside its dashboard.
    address = ray.get_runtime_context().gcs_address
    PrometheusServiceDiscoveryWriter(address, str(tmp_path)).write()
    files = [{"files": [str(tmp_path / PROMETHEUS_SERVICE_DISCOVERY_FILE)]}]
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "ray", "file_sd_configs": files}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        binary,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
    ]

    def get(path: str, **fields: str) -> Any:
        url = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/{path}?{urlencode(fields)}"
        return json.loads(urllib.request.urlopen(url, timeout=10).read())["data"]

    def alerts(name: str) -> Any:
        """Pending or firing."""
        return get("query", query=f'ALERTS{{alertname="{name}"}}')["result"]

    def unanswered() -> set[str]:
        asked = {query for name in BOARDS for query in queries(name)}
        texts = {
            query: query.replace("$replica", ".*").replace("$__rate_interval", "1m")
            for query in asked
        }
        return {query for query, text in texts.items() if not get("query", query=text)["result"]}

    with (tmp_path / "log").open("w") as log:
        prometheus = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(lambda: "Server is ready" in (tmp_path / "log").read_text(), "it is ready")
        for seed in range(4):
            ask(app, seed)
            time.sleep(1)  # rates need two scrapes
        eventually(lambda: not unanswered(), f"all of {unanswered()} are answered")
        rules = [rule for group in get("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}
        # It was pending until the first scrape.
        eventually(lambda: not alerts("SpindleMetricsMissing"), "no metrics are missing")
    finally:
        prometheus.terminate()
        prometheus.wait(30)


def log_lines(deployment: str) -> list[str]:
    """The lines of Serve's files of this deployment's replicas."""
    folder = Path(ray._private.worker._global_node.get_logs_dir_path()) / "serve"
    files = folder.glob(f"replica_spindle_{deployment}_*.log")
    return [line for file in files for line in file.read_text().splitlines()]


def test_serves_log_files_have_each_requests_end(app: serve.handle.DeploymentHandle) -> None:
    name = ask(app, 1)["id"].partition("-")[2]
    stream = app.options(stream=True).stream.remote(
        {"model": "target", "prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True}
    )
    cancelled = next(iter(stream))["id"].partition("-")[2]
    stream.cancel()

    def logged(deployment: str, *parts: str) -> bool:
        return any(all(part in line for part in parts) for line in log_lines(deployment))

    eventually(
        lambda: logged("Ingress", f"request={name}", "status=200"), "the ingress has its end"
    )
    eventually(lambda: logged("Ingress", f"request={cancelled}", "outcome=cancelled"), "its, too")
    eventually(lambda: logged("Replica", f"request {name}-0#0 left: "), "the replica has its end")
    eventually(lambda: logged("Replica", f"{cancelled}-0#0 left: cancelled"), "its, too")


def test_the_page_has_every_metric_and_label_as_it_is_declared() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    groups = [group for declared in (OF_REPLICA, OF_INGRESS) for group in declared]
    rows = [
        f"| `{metric.name}{'_total' if kind == 'counter' else ''}` "
        f"| {', '.join([kind, *(f'`{label}`' for label in metric.labels)])} | {metric.text} |"
        for kind, metrics in groups
        for metric in metrics
    ]
    assert [row for row in rows if row not in page] == []
    tables = page.partition("### Of replicas")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| `", tables.partition("### Labels")[0], re.MULTILINE)) == len(rows)
    labels = {label for _, metrics in groups for metric in metrics for label in metric.labels}
    listed = re.findall(r"^\| `(\w+)`", tables.partition("### Labels")[2], re.MULTILINE)
    assert set(listed) == labels | {"replica"}
