"""One local Ray cluster for a test module, and the actors in it."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import state  # the public API needs a dashboard, which takes seconds to start


def start_ray(**options: Any) -> None:
    """Starts a local cluster of its own, in at most two attempts: once in some hundred starts
    Ray 2.60's raylet does not come up."""
    options = {"address": "local", "num_cpus": 4, "include_dashboard": False, **options}
    try:
        ray.init(**options)
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        ray.init(**options)


@contextmanager
def cluster() -> Iterator[None]:
    # Ray starts an idle process for each CPU; our actors take ones of their own.
    start_ray(log_to_driver=False, num_cpus=1)
    try:
        yield
    finally:
        ray.shutdown()


def processes(replica: str, life: int | None = None) -> dict[str, int]:
    """The living actors of one replica, of this life or any: a lane or the verifier
    and its process."""
    prefix = f"spindle:{replica}:"
    living = [
        (*actor["Name"].removeprefix(prefix).rsplit(":", 1), actor["Pid"])
        for actor in state.actors().values()
        if actor["Name"].startswith(prefix) and actor["State"] == "ALIVE"
    ]
    return {host: pid for host, own, pid in living if life is None or own == str(life)}


def starts(replica: str, host: str) -> list[str]:
    """Ray's states of all actors that a host ever had, the first one first."""
    prefix = f"spindle:{replica}:{host}:"
    by_name = {actor["Name"]: str(actor["State"]) for actor in state.actors().values()}
    ours = {
        int(name.removeprefix(prefix)): one
        for name, one in by_name.items()
        if name.startswith(prefix)
    }
    return [ours[number] for number in sorted(ours)]


def has_loaded(pid: int, library: str) -> bool:
    """Whether a process has loaded a shared library whose path has this word."""
    return library in Path(f"/proc/{pid}/maps").read_text()


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
