"""The watchdog, among stand-ins for Ray's processes: those of Ray itself are killed by
`python -m benchmarks.serving.chaos --faults raylet agent gcs`."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deployments import watchdog

SERVE_RUN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGUSR2, lambda *_: os._exit(1))  # as deployments/stopping.py has it
gcs, raylet, folder = sys.argv[3:]
commands = [gcs, "60"], [sys.executable, raylet, folder]
ended = [subprocess.Popen(command) for command in commands]
open(folder + "/gcs", "w").write(str(ended[0].pid))
import time
time.sleep(60)
"""
RAYLET = """
import os, subprocess, sys
environment = os.environ | {"RAY_RAYLET_PID": str(os.getpid())}
code = "import time; from deployments import watchdog; watchdog.start(1.0); time.sleep(60)"
ingress = subprocess.Popen([sys.executable, "-c", code], env=environment)
worker = subprocess.Popen(["sleep", "60"], env=environment)
open(sys.argv[1] + "/pids", "w").write(f"{os.getpid()} {ingress.pid} {worker.pid}")
import time
time.sleep(60)
"""


@dataclass
class Processes:
    run: subprocess.Popen[bytes]
    gcs: int
    raylet: int
    ingress: int
    worker: int
    terminal: Path


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """What `serve run` writes its errors to: a file, if the test names nothing else."""
    kind = getattr(request, "param", "file")
    if kind == "file":
        opened = os.open(tmp_path / "terminal", os.O_WRONLY | os.O_CREAT)
    elif kind == "socket":
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach()
    else:
        reader, opened = os.pipe()
        os.close(reader)
    yield opened
    os.close(opened)


@pytest.fixture
def processes(tmp_path: Path, terminal: int) -> Iterator[Processes]:
    serve, raylet, gcs = (tmp_path / name for name in ("serve", "raylet.py", "gcs_server"))
    serve.write_text(SERVE_RUN)
    raylet.write_text(RAYLET)
    gcs.symlink_to("/bin/sleep")
    command = [sys.executable, *map(str, (serve, "run", "config", gcs, raylet, tmp_path))]
    run = subprocess.Popen(command, stderr=terminal)
    pids = tmp_path / "pids"
    while not pids.exists() or len(pids.read_text().split()) < 3:
        time.sleep(0.05)
    killed, ingress, worker = map(int, pids.read_text().split())
    gcs_pid = int((tmp_path / "gcs").read_text())
    found = Processes(run, gcs_pid, killed, ingress, worker, tmp_path / "terminal")
    while not _is_watched(found.raylet):
        time.sleep(0.05)
    yield found
    watchdog._kill((found.gcs, found.raylet, found.ingress, found.worker, run.pid))
    run.wait()


@pytest.mark.parametrize(("part", "name"), [("raylet", "raylet"), ("gcs", "GCS")])
def test_serve_run_ends_with_a_line_when_a_process_of_rays_is_killed(
    processes: Processes, part: str, name: str
) -> None:
    os.kill(getattr(processes, part), signal.SIGKILL)
    if part == "raylet":
        os.kill(processes.ingress, signal.SIGKILL)  # Ray ends it
    assert processes.run.wait(10) == 1
    while not (shown := processes.terminal.read_text()):
        time.sleep(0.05)
    assert shown.count("\n") == 1
    assert f"Spindle: Ray's {name} (process " in shown
    while _lives(processes.worker):
        time.sleep(0.05)


@pytest.mark.parametrize("terminal", ["socket", "pipe that nobody reads"], indirect=True)
def test_serve_run_ends_also_where_the_line_cannot_be_written(processes: Processes) -> None:
    os.kill(processes.raylet, signal.SIGKILL)
    assert processes.run.wait(10) == 1


def test_nothing_is_ended_when_serve_run_ends_by_itself_or_the_ingress_is_replaced(
    processes: Processes,
) -> None:
    os.kill(processes.ingress, signal.SIGKILL)
    time.sleep(2)
    os.kill(processes.raylet, signal.SIGKILL)
    time.sleep(2)
    assert processes.run.poll() is None, "another watchdog would end it"
    assert _lives(processes.worker)
    assert not processes.terminal.read_text()


def _is_watched(raylet: int) -> bool:
    commands = {pid: watchdog._read(pid, "cmdline") for pid in watchdog._all()}
    mine = [pid for pid, one in commands.items() if one[-4::3] == [str(raylet).encode(), b""]]
    try:
        files = [os.readlink(file) for pid in mine for file in Path(f"/proc/{pid}/fd").iterdir()]
    except FileNotFoundError:  # one of them has ended meanwhile
        return False
    return sum("pidfd" in file for file in files) == 4


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
