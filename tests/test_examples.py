"""The scripts in examples/ that need no server run as their docstrings say; those of clients are in
tests/deployments/test_documented.py."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120
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
