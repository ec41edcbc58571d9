"""Every snippet of README.md and docs/handles.md, and the clients in examples/, run as they stand
there, in a fresh process that has another home and none of our modules.

Only ports differ, as others may be in use here, and a small model is served under the name of the
default one. `make serve` and `make test` are the two commands that are left out.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import yaml

from tests.deployments.serving import ARGS, PORT, URL, application

ROOT = Path(__file__).parents[2]
GRPC_PORT = 9163
PORTS = {":8000": f":{PORT}", ":9000": f":{GRPC_PORT}"}
MODEL = "SmolLM2-135M-Instruct"
README, HANDLES = "README.md", "docs/handles.md"
LEFT_OUT = ("make serve", "make test")


def page(name: str) -> str:
    text = (ROOT / name).read_text()
    for documented, here in PORTS.items():
        text = text.replace(documented, here)
    return text


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(name), re.DOTALL)


def commands(name: str) -> list[str]:
    """The indented lines of a page outside of its fenced blocks: each snippet for a shell."""
    text = re.sub(r"```.*?```", "", page(name), flags=re.DOTALL)
    found = re.findall(r"(?<=\n\n)(?: {4}[^\n]*\n)+", text)
    snippets = ["\n".join(line[4:] for line in one.splitlines()) for one in found]
    return [one for one in snippets if not one.startswith(LEFT_OUT)]


@pytest.fixture(scope="module", autouse=True)
def _app() -> Iterator[None]:
    (config,) = blocks(HANDLES, "yaml")
    args = {**ARGS, **yaml.safe_load(config)["args"], "served_name": MODEL}
    args["grpc"] = {"port": GRPC_PORT}
    with application(args):
        yield


def caller(home: Path, **more: str) -> dict[str, str]:
    """The environment of another user, with what docs/handles.md tells to set; the address, because
    other clusters may run here."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
        "RAY_AUTH_TOKEN_PATH": str(Path.home() / ".ray" / "auth_token"),
        **more,
    }


def run(command: list[str], folder: Path, **more: str) -> str:
    ran = subprocess.run(
        command, cwd=folder, env=caller(folder, **more), capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_readmes_requests_are_answered_alike_with_and_without_drafts(tmp_path: Path) -> None:
    asked = commands(README)
    assert len(asked) == 2
    answers = [json.loads(run(["bash", "-c", one], tmp_path)) for one in asked]
    choices = [answer["choices"][0] for answer in answers]
    assert choices[0]["message"] == choices[1]["message"]
    assert [bool(choice["spindle"]["drafted"]) for choice in choices] == [True, False]


def test_the_handles_script_runs_with_its_command(tmp_path: Path) -> None:
    (script,) = [block for block in blocks(HANDLES, "python") if "ray.init(" in block]
    (tmp_path / "script.py").write_text(script)
    (command,) = commands(HANDLES)
    assert run(["bash", "-c", command], tmp_path).strip(), "the stream's text"


def test_the_example_service_runs(tmp_path: Path) -> None:
    (service,) = [block for block in blocks(HANDLES, "python") if "Counting.bind()" in block]
    (tmp_path / "service.py").write_text(service)
    (tmp_path / "driver.py").write_text(
        """
import importlib.util, ray
from ray import serve

for ours in ("deployments", "engine", "policies"):
    assert importlib.util.find_spec(ours) is None, f"{ours} can be imported here"
ray.init("auto", logging_level="error", log_to_driver=False, runtime_env={"working_dir": "."})
from service import app

counting = serve.run(app, name="counting", route_prefix="/counting")
print("RESULT", counting.whole.remote(5).result(timeout_s=60))
print("RESULT", "".join(counting.options(stream=True).pieces.remote(5)))
serve.delete("counting")
"""
    )
    output = run([sys.executable, "driver.py"], tmp_path, RAY_AUTH_MODE="token")
    whole, pieces = output.split("RESULT ")[1:]
    assert whole == pieces
    assert whole.strip()


def test_the_grpc_script_runs(tmp_path: Path) -> None:
    (script,) = [block for block in blocks(HANDLES, "python") if "import grpc" in block]
    (tmp_path / "script.py").write_text(script)
    assert run([sys.executable, "script.py"], tmp_path).strip(), "the answer's text"


def test_the_openai_client_names_an_slo_and_a_drafter(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "client_slo_and_drafter.py")
    asked = ["--url", URL, "--drafter", "tiny", "--question", "Count to 7."]
    printed = run([sys.executable, script, *asked], tmp_path).splitlines()
    texts = [line.partition(": ")[2] for line in printed[::2]]
    assert len(texts) == 3
    assert len(set(texts)) == 1, "speculation does not change the text"
    assert "0 of 0 draft tokens" in printed[-1]
    assert " 0 of 0 " not in printed[3]


def test_the_example_of_a_handle_prints_one_answer_whole_and_streamed(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "ray_handle.py")
    asked = ["--model", MODEL, "--question", "Count to 7."]
    printed = run([sys.executable, script, *asked], tmp_path, RAY_AUTH_MODE="token")
    whole, stream = printed.split("stream: ")
    assert whole.removeprefix("whole:  ").strip() == stream.strip() != ""


def test_no_other_snippet_is_there() -> None:
    assert blocks(README, "python") == []
    assert len(blocks(HANDLES, "python")) == 3
