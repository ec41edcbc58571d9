"""Faults of what the service starts with: a config that cannot be served, a full cache folder, a
clock that is set back (benchmarks/serving/whole_service.py has the others)."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.serving.app import ray_environment
from benchmarks.serving.serve_run import ROOT, SMALL_TARGET, START_S, launched, served, until
from benchmarks.serving.whole_service import REPLACED_S, bodies_of, start_streams
from cluster.built_in_models import TARGET, model_path

COMPILES_S = 400.0
RECOVERY_S = 10.0
BACK_S = 60.0
TOKENS = 400
CLOCK = f"""
import os, time
real = time.time
time.time = lambda: real() - ({BACK_S} if os.path.exists(__file__ + ".back") else 0)
"""
"""Sets the clock of all Python processes back, Serve's among them, but not Ray's own."""


async def refused(target: Mapping[str, Any]) -> list[str]:
    """`serve run` ends with one line."""
    async with launched(changes={"target": target}) as service:
        began = time.monotonic()

        async def ended() -> bool:
            return service.process.poll() is not None

        await until(ended, START_S, "it ends")
        print(f"  ends after {time.monotonic() - began:.1f} s")
        status = service.process.poll()
        service.expect(status == 1, f"exit status {status}")
        lines = [one for one in service.terminal.splitlines() if one.startswith("Spindle: `serve")]
        print(*lines, sep="\n")
        service.expect(len(lines) == 1, f"{len(lines)} lines about it on the terminal")
        return service.problems


async def half_weights() -> list[str]:
    """Which the replica's constructor refuses."""
    with tempfile.TemporaryDirectory() as folder:
        model = shutil.copytree(model_path(TARGET), Path(folder) / "model")
        weights = model / "model.safetensors"
        os.truncate(weights, weights.stat().st_size // 2)
        return await refused(SMALL_TARGET | {"model": str(model)})


async def full_cache() -> list[str]:
    """It serves, and a line each names loops and costs that cannot be kept there."""
    with tempfile.TemporaryDirectory() as cache:
        mounted = 'mount -t tmpfs -o size=64k none "$SPINDLE_CACHE"; exec "$@"'
        async with served(
            ["unshare", "-m", "bash", "-c", mounted, "_"],
            {"target": SMALL_TARGET},
            ray_environment() | {"SPINDLE_CACHE": cache},
            COMPILES_S,
        ) as service:
            lines = [one for one in service.terminal.splitlines() if cache in one]
            print(*lines, sep="\n")
            service.expect(0 < len(lines) <= 2, f"{len(lines)} lines name the folder")
            service.expect("Traceback" not in service.terminal, "a traceback on the terminal")
            return service.problems


async def clock_back() -> list[str]:
    """Streams of a replica that dies meanwhile end with an error; `/health` says why, and the
    replica is replaced when the clock is where it was."""
    with tempfile.TemporaryDirectory() as folder:
        hook = Path(folder) / "sitecustomize.py"
        hook.write_text(CLOCK)
        environment = ray_environment() | {"PYTHONPATH": f"{folder}:{ROOT}"}
        changes = {"limits": {"recovery_s": RECOVERY_S}}
        async with served(changes=changes, environment=environment) as service:
            streams, reading = await start_streams(service, bodies_of(tokens=TOKENS))
            hook.with_name(f"{hook.name}.back").touch()
            await asyncio.sleep(2)
            health = await service.ask("/health")
            service.expect("warning" in health[2], f"/health: {health}")
            service.child("ServeReplica:spindle:Replica").kill()
            killed = time.monotonic()
            await reading
            ended_s = time.monotonic() - killed
            service.expect(ended_s < 2 * RECOVERY_S, f"streams end after {ended_s:.1f} s")
            service.expect(all(one.error for one in streams), "streams end without an error")
            health = await service.ask("/health")
            service.expect("clock was set back" in health[2], f"/health: {health}")
            await until(service.is_healthy, BACK_S + REPLACED_S, "another replica")
            replaced_s = time.monotonic() - killed
            print(f"  streams end after {ended_s:.1f} s, {streams[0].error}", end="; ")
            print(f"another replica after {replaced_s:.1f} s")
            return service.problems


CASES: Mapping[str, Callable[[], Coroutine[Any, Any, list[str]]]] = {
    "unknown_field": partial(refused, SMALL_TARGET | {"nonsense": 1}),
    "half_weights": half_weights,
    "full_cache": full_cache,
    "clock_back": clock_back,
}
