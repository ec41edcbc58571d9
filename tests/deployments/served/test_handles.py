"""Other services call the application: by handle from a process that lacks our code, by gRPC."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import ray
from google.protobuf.wrappers_pb2 import StringValue
from ray import serve

from tests.deployments.served.application import GRPC_PORT
from tests.deployments.serving import KEY_FROM_ENVIRONMENT as KEY
from tests.deployments.serving import PROMPT, eventually, expected_text, is_idle

pytestmark = [
    pytest.mark.parametrize("app", ["native"], indirect=True),
    pytest.mark.usefixtures("app"),
]
FIELDS: dict[str, Any] = {"model": "target", "prompt": PROMPT, "max_tokens": 24}
SEED = 2**63 + 5
"""More than a double can represent."""

CALLER = """
import importlib.util, json, sys
import ray
from ray import serve

ray.init("auto", logging_level="error", log_to_driver=False)
for ours in ("deployments", "engine", "policies"):
    assert importlib.util.find_spec(ours) is None, f"{ours} can be imported here"
asked = json.loads(sys.argv[1])
spindle = serve.get_app_handle("spindle")
answer = spindle.generate.remote(asked).result(timeout_s=60)
chunks = list(spindle.options(stream=True).stream.remote(asked))
refused = spindle.generate.remote({**asked, "temperature": -1}).result(timeout_s=60)
print("RESULT", json.dumps([answer, chunks, refused]))
"""


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{GRPC_PORT}") as opened:
        yield opened


def call(channel: grpc.Channel, kind: str, method: str, fields: Any, key: str = KEY) -> Any:
    caller = getattr(channel, kind)(
        f"/spindle.Spindle/{method}", StringValue.SerializeToString, StringValue.FromString
    )
    text = fields if isinstance(fields, str) else json.dumps(fields)
    return caller(
        StringValue(value=text), timeout=60, metadata=[("authorization", f"Bearer {key}")]
    )


def run_elsewhere(code: str, folder: Path, *arguments: str) -> str:
    """In a process that starts in `folder`, which has none of our modules."""
    script = folder / "elsewhere.py"
    script.write_text(code)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env=environment | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def test_a_process_without_our_code_calls_whole_and_in_chunks(tmp_path: Path) -> None:
    asked = {**FIELDS, "seed": SEED, "temperature": 1.0}
    output = run_elsewhere(CALLER, tmp_path, json.dumps(asked))
    answer, chunks, refused = json.loads(output.partition("RESULT ")[2])
    assert answer["choices"][0]["text"] == expected_text(1.0, SEED, 24)
    assert text(chunks) == expected_text(1.0, SEED, 24)
    assert len(chunks) < answer["usage"]["completion_tokens"], "one for each verdict"
    assert refused["error"]["param"] == "temperature"
    assert refused["error"]["status"] == 400


def test_grpc_answers_as_http_and_keeps_all_bits_of_a_seed(channel: grpc.Channel) -> None:
    asked = {**FIELDS, "seed": SEED, "temperature": 1.0}
    whole = json.loads(call(channel, "unary_unary", "Generate", asked).value)
    assert whole["choices"][0]["text"] == expected_text(1.0, SEED, 24)
    assert whole["choices"][0]["spindle"]["seed"] == SEED
    chunks = [json.loads(one.value) for one in call(channel, "unary_stream", "Stream", asked)]
    assert text(chunks) == expected_text(1.0, SEED, 24)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_32_concurrent_callers_get_the_oracles_text(channel: grpc.Channel) -> None:
    spindle = serve.get_app_handle("spindle")

    def ask(number: int) -> str:
        asked = {**FIELDS, "seed": number % 4, "temperature": 1.0}
        if number % 2:
            return text([json.loads(one.value) for one in stream(asked)])
        output: str = spindle.generate.remote(asked).result(timeout_s=60)["choices"][0]["text"]
        return output

    def stream(asked: dict[str, Any]) -> Any:
        return call(channel, "unary_stream", "Stream", asked)

    with ThreadPoolExecutor(32) as pool:
        output = list(pool.map(ask, range(32)))
    assert output == [expected_text(1.0, number % 4, 24) for number in range(32)]


ENDLESS = {**FIELDS, "max_tokens": 1900, "ignore_eos": True}


def test_a_caller_by_handle_that_goes_away_frees_its_kv() -> None:
    stream = serve.get_app_handle("spindle").options(stream=True).stream.remote(ENDLESS)
    next(iter(stream))
    stream.cancel()
    eventually(is_idle, "KV of a caller that went away is free", within_s=2)


def test_a_caller_by_grpc_that_goes_away_frees_its_kv(channel: grpc.Channel) -> None:
    for _ in range(8):
        stream = call(channel, "unary_stream", "Stream", ENDLESS)
        next(iter(stream))
        stream.cancel()
    eventually(is_idle, "KV of callers that went away is free", within_s=5)
