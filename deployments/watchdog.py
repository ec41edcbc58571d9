"""Ends what is left of an application when one of Ray's own processes is killed on the head node.

Without its raylet or GCS nothing serves any more, but `serve run` lives on, and workers that are
left hold the port, where clients wait for ever. The ingress, which is on the head node, starts this
file as a process of its own. It ends the workers and `serve run`, if that has started Ray, with a
line on its terminal: a supervisor starts all of it anew. It imports neither Ray nor the project.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_ORDERLY_S = 5.0
_EXIT_S = 1.0


def start(orderly_s: float = _ORDERLY_S) -> None:
    """Returns when it runs, as no child of this process: Ray ends the children of workers.
    `orderly_s`: for `serve run` to end by itself, if it is what has ended Ray's process."""
    raylet = os.environ.get("RAY_RAYLET_PID", os.getppid())  # a worker's parent may be a wrapper
    arguments = map(str, (raylet, os.getpid(), orderly_s))
    command = [sys.executable, "-I", __file__, *arguments]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


def main(raylet: int, ingress: int, orderly_s: float) -> None:
    """Returns when the ingress ends while Ray's processes live: the next one starts another."""
    starter = _parent(raylet)
    if not {b"run", b"serve"} <= {part.rpartition(b"/")[2] for part in _read(starter, "cmdline")}:
        starter = 0  # `ray start` has its own end, and may stand for other services
    names = {raylet: "raylet", ingress: "", starter: ""}
    for pid in _all() if starter else ():
        if _parent(pid) == starter and _read(pid, "cmdline")[0].endswith(b"gcs_server"):
            names[pid] = "GCS"
    watched = {os.pidfd_open(pid): pid for pid in names if pid}
    ended = _first(watched, None)
    if ended == ingress:
        ended = _first(watched, orderly_s, ingress)
    if not names.get(ended) or (starter and _first(watched, orderly_s, ingress, ended) == starter):
        return
    if starter and not _parent(ended):  # else nobody has waited for its end
        return
    if not starter:
        _kill(_workers(raylet) - {os.getpid()})
        return
    line = f"Ray's {names[ended]} (process {ended}) is gone: `serve run` ends, start it anew"
    try:
        terminal = os.open(f"/proc/{starter}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError:  # a socket, as systemd gives, or closed
        terminal = os.open(os.devnull, os.O_WRONLY)
    _kill({*_below(starter), *_workers(raylet)} - {os.getpid()})
    os.kill(starter, signal.SIGSTOP)  # so that it writes nothing over the line, in a file
    with suppress(OSError):  # a pipe that nobody reads
        os.write(terminal, f"Spindle: {line}\n".encode())
    os.kill(starter, signal.SIGUSR2)  # at which it exits with 1 (deployments/stopping.py)
    os.kill(starter, signal.SIGCONT)
    if not _first(watched, _EXIT_S, *names.keys() - {starter}):
        os.kill(starter, signal.SIGKILL)


def _first(watched: dict[int, int], seconds: float | None, *but: int) -> int:
    """The first process to end, other than `but`; 0: none within this time."""
    poll = select.poll()
    for file, pid in watched.items():
        if pid not in but:
            poll.register(file, select.POLLIN)
    ended = poll.poll(None if seconds is None else 1000 * seconds)
    return watched[ended[0][0]] if ended else 0


def _all() -> Iterator[int]:
    return (int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal())


def _parent(pid: int) -> int:
    """0 if there is none, or none that is known."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _read(pid: int, name: str) -> list[bytes]:
    """A file of zero-terminated strings; one empty string if the process is gone or another
    user's."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    return [b""]


def _workers(raylet: int) -> set[int]:
    """Ray's workers, whose parent may be gone."""
    mark = f"RAY_RAYLET_PID={raylet}".encode()
    return {pid for pid in _all() if mark in _read(pid, "environ")}


def _below(pid: int) -> Iterator[int]:
    for child in [one for one in _all() if _parent(one) == pid]:
        yield child
        yield from _below(child)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    if os.fork() == 0:
        os.setsid()
        main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
