"""One local Ray cluster for a test module, and the actors in it."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ray
from ray._private import state  # the public API needs a dashboard, which takes seconds to start


@contextmanager
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def processes(replica: str) -> dict[str, int]:
    """The living actors of one replica: a lane, verifier or verifier/rank1 and its process."""
    prefix = f"spindle:{replica}:"
    return {
        actor["Name"].removeprefix(prefix).rsplit(":", 1)[0]: actor["Pid"]
        for actor in state.actors().values()
        if actor["Name"].startswith(prefix) and actor["State"] == "ALIVE"
    }


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
