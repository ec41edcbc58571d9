"""`serve run` in the project's folder has the environment of cluster/serve.env."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving.app import ray_environment

ROOT = Path(__file__).parents[2]
AT_START = """
import json, os, site, sys
sys.argv = sys.argv[1:]
site.addpackage(os.environ["FOLDER"], "spindle.pth", None)
print(json.dumps(dict(os.environ)))
"""


def started(command: str, cwd: Path, **environment: str) -> dict[str, str]:
    """The environment in which a Python program starts where make has put the file."""
    wanted = ray_environment()
    own = {name: value for name, value in os.environ.items() if name not in wanted}
    ran = subprocess.run(
        [sys.executable, "-c", AT_START, *command.split()],
        cwd=cwd,
        env=own | environment | {"FOLDER": str(ROOT / "cluster")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not ran.stderr
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_serve_run_has_it_but_for_what_the_environment_says() -> None:
    found = started("bin/serve run cluster.yaml", ROOT, SPINDLE_HTTP_TIMEOUT_S="7")
    assert ray_environment().items() - found.items() == {("SPINDLE_HTTP_TIMEOUT_S", "30")}
    assert found["SPINDLE_HTTP_TIMEOUT_S"] == "7"


@pytest.mark.parametrize("command", ["bin/serve status", "bin/pytest run", "bin/serve"])
def test_nothing_else_has_it(command: str) -> None:
    assert "SPINDLE_HTTP_TIMEOUT_S" not in started(command, ROOT)


def test_serve_run_elsewhere_has_not(tmp_path: Path) -> None:
    assert "SPINDLE_HTTP_TIMEOUT_S" not in started("bin/serve run cluster.yaml", tmp_path)


def test_make_serve_leaves_to_the_environment_what_it_says() -> None:
    """It set all of the file itself, over what an operator had set."""
    asked = ["make", "--no-print-directory", "-n", "serve", "TOPOLOGY=cluster/zoo.yaml"]
    ran = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == ".venv/bin/serve run cluster/zoo.yaml"
