"""The tests' process ends at once, but says what it has to say and how it went."""

import subprocess
import sys
from pathlib import Path

import pytest

RAN = """
import atexit
import ray

atexit.register(print, "taken apart")

def test_it():
    assert {passes}
"""


@pytest.mark.parametrize(("passes", "status"), [(True, 0), (False, 1)])
def test_its_status_and_report_come_through(tmp_path: Path, passes: bool, status: int) -> None:
    (tmp_path / "test_ran.py").write_text(RAN.format(passes=passes))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert ("1 passed" if passes else "1 failed") in ended.stdout
    assert "taken apart" not in ended.stdout
