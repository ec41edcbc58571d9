"""The tests' process ends at once, but says what it has to say and how it went."""

import subprocess
import sys
from pathlib import Path

RAN = """
import atexit
import ray

atexit.register(print, "taken apart")

def test_it():
    assert False
"""


def test_its_status_and_report_come_through(tmp_path: Path) -> None:
    (tmp_path / "test_ran.py").write_text(RAN)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed" in ended.stdout
    assert "taken apart" not in ended.stdout
