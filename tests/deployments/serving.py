"""The application on the uninflated target in fp32, in one Ray cluster for all modules here.

A start of Ray and Serve takes a quarter of a minute on two cores, so `application` starts them for
the first module and leaves them to the next one.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import httpx
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ServeDeploySchema
from transformers import AutoTokenizer

from benchmarks.processes import environment
from benchmarks.serving.app import ray_environment
from cluster.built_in_models import TARGET, model_path
from deployments.messages import Heartbeat, StreamRequest
from engine.sampling.params import SamplingParams
from engine.scopes import SHARED
from policies.request import Slo
from tests import reference
from tests.actors.hosts.cluster import start_ray
from tests.engine.streams import reference_target

PORT, METRICS_PORT = 8130, 8230
URL = f"http://127.0.0.1:{PORT}"
METRICS_URL = f"http://127.0.0.1:{METRICS_PORT}/metrics"
"""Ray's own endpoint."""
KEY_FROM_ENVIRONMENT = "a key of a tenant"
ENVIRONMENT: Mapping[str, str] = {
    "KEY_OF_TENANT": KEY_FROM_ENVIRONMENT,
    # Metrics and signals for autoscaling are half a second old at most.
    "RAY_metrics_report_interval_ms": "500",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
}
"""Ray's processes inherit it."""
SEED = 7
"""The seed of `request` below."""
PROMPT = "<|user|>Count to 7.<|end|><|assistant|>"
ARGS: Mapping[str, Any] = {
    "target": {"dtype": "float32", "placement": "inline"},
    "drafters": [
        {"name": "tiny", "model": "zoo/tiny", "placement": "inline"},
        {"name": "ngram", "kind": "ngram"},
    ],
    # Our own policies may find that drafting does not pay for so small a target.
    "policies": {"selection": {"name": "fixed"}, "speculation": {"name": "fixed"}},
}

VLLM_TARGET: Mapping[str, Any] = {
    "dtype": "float32",
    "backend": "vllm",
    # Without compilation it loads in a third of the time.
    "engine_args": {"enforce_eager": True},
}
VLLM_LOADS_S = 240

_cluster = ExitStack()
"""Closing it ends the cluster."""


@contextmanager
def application(
    args: Mapping[str, Any], within_s: float = 90, fresh_cluster: bool = False
) -> Iterator[str]:
    """Its URL. `fresh_cluster`: for tests of what Ray shows of the whole cluster."""
    if fresh_cluster:
        end_cluster()
    if not ray.is_initialized():
        _start_cluster()
    try:
        deploy(args, within_s=within_s)
        eventually(_is_routed, "the proxy knows the application")
        yield URL
    finally:
        if ray.is_initialized():  # no test has ended the cluster
            try:
                serve.delete("spindle")
            except TimeoutError:  # for a minute a stream has kept a replica
                end_cluster()


def _start_cluster() -> None:
    with environment({**ray_environment(), **ENVIRONMENT}):
        start_ray(logging_level="warning", _metrics_export_port=METRICS_PORT)
    _cluster.callback(ray.shutdown)
    _cluster.callback(serve.shutdown)
    serve.start(http_options={"port": PORT})


def _is_routed() -> bool:
    answer = httpx.get(f"{URL}/-/routes")
    return answer.is_success and "/" in answer.json()


def end_cluster() -> None:
    """Before a module that starts one of its own, and after the last one."""
    _cluster.close()


def deploy(
    args: Mapping[str, Any], user_config: Mapping[str, Any] | None = None, within_s: float = 90
) -> None:
    """As `serve run` deploys a file; once more with a `user_config` switches policies."""
    begin_deploy(args, user_config)

    def is_running() -> bool:
        status = serve.status().applications["spindle"]
        reasons = [status.message, *(one.message for one in status.deployments.values())]
        assert status.status != "DEPLOY_FAILED", "\n".join(reasons)
        return status.status == "RUNNING"

    eventually(is_running, "the application runs", within_s)


def begin_deploy(args: Mapping[str, Any], user_config: Mapping[str, Any] | None = None) -> None:
    """Returns at once; Serve has finished when replaced replicas have drained."""
    application = {
        "name": "spindle",
        "import_path": "deployments.app:build",
        "args": dict(args),
        "deployments": [{"name": "Replica", "user_config": user_config}] if user_config else [],
    }
    schema = ServeDeploySchema.model_validate({"applications": [application]})
    _get_global_client().deploy_apps(schema, _blocking=False)


def replica_states() -> Mapping[str, int]:
    """How many replicas are in each of Serve's states; none while the application is built."""
    deployments = serve.status().applications["spindle"].deployments
    return deployments["Replica"].replica_states if "Replica" in deployments else {}


def replicas() -> DeploymentHandle:
    return serve.get_deployment_handle("Replica", "spindle")


def is_idle() -> bool:
    """Whether nothing runs or waits, and all KV is free or cached."""
    state = replicas().state.remote().result(timeout_s=10)
    kv = state["kv_blocks"]
    assert kv["free"] + kv["used"] + kv["cached"] == kv["total"], "blocks have been lost"
    return bool(state["running"] == state["waiting"] == kv["used"] == 0)


def eventually(holds: Callable[[], bool], what: str, within_s: float = 30) -> None:
    """Latencies are measured in benchmarks: a shared machine may pause for seconds. The longer it
    takes, the more rarely this asks, since answering takes time from what is waited for."""
    waited_s = 0.0
    while waited_s < within_s:
        if holds():
            return
        pause_s = min(0.5, 0.1 + waited_s / 20)
        time.sleep(pause_s)
        waited_s += pause_s
    raise AssertionError(f"not within {within_s} s: {what}")


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_path(TARGET))


@cache
def expected_ids(temperature: float, seed: int, max_tokens: int) -> list[int]:
    """What the oracle generates after PROMPT."""
    stop = tokenizer().eos_token_id
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, stop_token_ids=(stop,))
    return reference.generate(reference_target(), tokenizer()(PROMPT)["input_ids"], params, seed)


def expected_text(temperature: float, seed: int, max_tokens: int) -> str:
    ids = expected_ids(temperature, seed, max_tokens)
    text: str = tokenizer().decode(ids, skip_special_tokens=True)
    return text


def request(name: str, **changes: Any) -> StreamRequest:
    plain: StreamRequest = {
        "name": name,
        "attempt": 0,
        "ingress": f"ingress of {name}",
        "prompt_ids": list(tokenizer()(PROMPT)["input_ids"]),
        "output_ids": [],
        "params": SamplingParams(temperature=1.0, max_tokens=40, seed=SEED),
        "slo": Slo(),
        "priority": 0,
        "tenant": "",
        "scope": SHARED,
        "remember": True,
        "speculation": {"enabled": True, "drafter": None, "max_depth": None},
        "may_teach": False,
        "trace": False,
        "pause_s": 0.0,
        "avoid": [],
        "routed_to": None,
    }
    return plain | changes  # type: ignore[return-value]  # the changes are of its fields


def heartbeat_of(name: str, replica: str, read: Mapping[str, int], *left: str) -> Heartbeat:
    ingress = f"ingress of {name}"
    return {"replica": replica, "ingress": ingress, "read": dict(read), "left": left}


@contextmanager
def send_heartbeats(streams: dict[str, str], read: dict[str, int]) -> Iterator[None]:
    """Sends heartbeats as an ingress does while it has streams."""
    done = threading.Event()

    def send() -> None:
        while not done.wait(0.2):
            for name, replica in streams.items():
                replicas().heartbeat.remote(heartbeat_of(name, replica, read))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        done.set()
        sender.join()


def read_to_end(
    accepted: Iterator[dict[str, Any]], name: str, replica: str
) -> list[dict[str, Any]]:
    """The messages after the first one, read as an ingress does: with heartbeats."""
    received: list[dict[str, Any]] = []
    read = {name: 0}
    with send_heartbeats({name: replica}, read):
        for message in accepted:
            received.append(message)
            read[name] += len(message.get("token_ids", ()))
    return received


def tokens(messages: list[dict[str, Any]]) -> list[int]:
    return [token for message in messages for token in message.get("token_ids", ())]
