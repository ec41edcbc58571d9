"""The application as `make serve` runs it, over real HTTP, on the uninflated target in fp32."""

import importlib.util
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from benchmarks.serving.app import ray_environment
from deployments.app import build
from deployments.connections import TIMEOUT
from tests.deployments.serving import ARGS, PROMPT, eventually

ROOT = Path(__file__).parents[2]
PORT = 8123
GRPC_PORT = 9123
URL = f"http://127.0.0.1:{PORT}"
CONNECTION_TIMEOUT_S = 5


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the terminal shows."""
    return tmp_path_factory.mktemp("serve") / "log"


@pytest.fixture(scope="module")
def server(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The zoo's config but for the target's size and dtype, the port, small limits and fixed
    policies: verifier, drafters and router in actors of their own."""
    config = yaml.safe_load((ROOT / "cluster" / "zoo.yaml").read_text())
    config["http_options"]["port"] = PORT
    (application,) = config["applications"]
    application["args"] |= {
        "grpc": {"port": GRPC_PORT},
        "target": {"dtype": "float32"},
        "limits": {"max_batch": 4, "max_waiting": 2, "client_share": 1.0},
        "policies": ARGS["policies"],
    }
    path = log.with_name("cluster.yaml")
    path.write_text(yaml.safe_dump(config))
    # As the Makefile has it.
    command = [str(Path(sys.executable).parent / "serve"), "run", str(path)]
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            cwd=ROOT,
            # A cluster of its own: else it joins the one that runs here, and takes its place.
            env=os.environ
            | ray_environment()
            | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local", TIMEOUT: str(CONNECTION_TIMEOUT_S)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        for _ in range(300):
            try:
                if requests.get(f"{URL}/health", timeout=5).ok:
                    break
            except (requests.ConnectionError, requests.Timeout):
                assert server.poll() is None, log.read_text()
            time.sleep(0.5)
        else:
            pytest.fail(log.read_text())
        yield server
    finally:
        server.send_signal(signal.SIGINT)  # `serve run` takes its own Ray down with it
        server.wait(120)


@pytest.fixture
def app(server: subprocess.Popen[bytes]) -> str:
    assert server.poll() is None
    return URL


def ask(app: str, **fields: Any) -> requests.Response:
    body = {"model": "target", "prompt": PROMPT, "max_tokens": 40, **fields}
    stream = bool(fields.get("stream"))
    return requests.post(f"{app}/v1/completions", json=body, stream=stream, timeout=60)


def test_a_response_larger_than_serves_default_limit_arrives(app: str) -> None:
    fields: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 20}
    answer = ask(app, prompt=[[5] * 2000] * 5, **fields)
    assert len(answer.content) > 4 * 1024 * 1024
    assert len(answer.json()["choices"]) == 5


def test_slow_connections_are_closed(app: str) -> None:
    """By the proxy; and others are served meanwhile."""
    slow = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(40)]
    for connection in slow:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
    assert ask(app, temperature=0, max_tokens=2).ok
    for connection in slow:
        connection.settimeout(10 * CONNECTION_TIMEOUT_S)
        assert b"408" in connection.recv(4096)
        assert connection.recv(4096) == b""
        connection.close()


def test_the_terminal_shows_progress_and_then_what_to_try(app: str, log: Path) -> None:
    eventually(lambda: "Try: curl" in log.read_text(), "the curl line is there")
    shown = log.read_text()
    assert shown.index("loading") < shown.index("warming up") < shown.index("Spindle is ready")
    for model in ("target", "tiny", "tasks"):
        assert f"{model}: ready after" in shown
    for stray in ("Loading weights", "Calling ray.init", "Connecting to existing Ray cluster"):
        assert stray not in shown
    (command,) = re.findall(r"Try: (curl .*)", shown)
    answer = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=60)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_ctrl_c_lets_answers_end_and_refuses_others(
    app: str, server: subprocess.Popen[bytes], log: Path
) -> None:
    """The last one that asks this application."""
    stream = ask(app, n=4, max_tokens=400, temperature=0, ignore_eos=True, stream=True)
    events = stream.iter_lines()
    next(events)
    server.send_signal(signal.SIGINT)
    eventually(lambda: ask(app, max_tokens=1).status_code == 503, "requests are refused")
    received = list(events)
    assert received[-2] == b"data: [DONE]"
    assert b"".join(received).count(b'"finish_reason": "length"') == 4
    assert server.wait(60) == 0
    assert "stack trace" not in log.read_text()


def test_a_target_on_vllm_needs_vllm_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="make serve TARGET=vllm"):
        build({"target": {"model": "zoo/target", "backend": "vllm"}, "drafters": []})
