"""The scripts in examples/ run as their docstrings say."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from benchmarks.serving.app import small_args
from tests.deployments.serving import cluster, deploy

ROOT = Path(__file__).parents[1]
PORT = 8176


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    """The target of cluster/test.yaml inside the replica, and one lookup: it starts soonest."""
    args = small_args()
    args["target"]["placement"] = "inline"
    args["drafters"] = [{"name": "suffix", "kind": "suffix"}]
    with cluster(PORT):
        deploy(args, within_s=240)
        yield f"http://127.0.0.1:{PORT}"


def run(*command: str, folder: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_offline_generation_gives_the_same_tokens_with_a_drafter() -> None:
    printed = run("-m", "examples.offline_generate")
    assert "same tokens: True" in printed


def test_a_policy_from_outside_the_repository_runs_in_the_simulator() -> None:
    printed = run("-m", "examples.custom_policy")
    values = [float(line.split(": ")[1].split()[0]) for line in printed.splitlines()]
    fixed, custom = values
    assert custom > fixed


def test_the_openai_client_names_an_slo_and_a_drafter(app: str, tmp_path: Path) -> None:
    """From a folder that has nothing of the repository."""
    script = str(ROOT / "examples" / "client_slo_and_drafter.py")
    question = ["--question", "Count to 7."]
    printed = run(script, "--url", app, *question, folder=tmp_path).splitlines()
    texts = [line.partition(": ")[2] for line in printed[::2]]
    assert len(texts) == 3
    assert len(set(texts)) == 1, "speculation does not change the text"
    assert "0 of 0 draft tokens" in printed[-1]
    assert " 0 of 0 " not in printed[3]


def test_another_process_calls_by_handle(app: str, tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "ray_handle.py")
    address = ray.get_runtime_context().gcs_address
    arguments = ["--model", "target", "--question", "Count to 7."]
    printed = run(script, *arguments, folder=tmp_path, RAY_ADDRESS=address)
    whole, stream = printed.split("stream: ")
    assert whole.removeprefix("whole:  ").strip() == stream.strip() != ""
