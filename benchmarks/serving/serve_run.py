"""A `serve run` of its own, as `make serve` has it, and what is seen of it."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from aiohttp import ClientError, ClientTimeout

from benchmarks.serving.app import ray_environment, small_args
from benchmarks.serving.streams import session
from cluster.built_in_models import TARGET

ROOT = Path(__file__).parents[2]
PORT = 8173
START_S = 100.0
DRAIN_S = 60.0
CALL_S = 5.0
SMALL_TARGET = {"model": f"zoo/{TARGET}", "dtype": "float32", "placement": "inline"}


@dataclass(slots=True)
class Service:
    """A `serve run`, and what was seen of it."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path
    family: Sequence[psutil.Process] = ()
    """All its processes before the fault."""
    problems: list[str] = field(default_factory=list)

    def expect(self, true: bool, what: str) -> None:
        if not true:
            self.problems.append(what)

    def child(self, part: str) -> psutil.Process:
        """The process with this in its command line."""
        return next(one for one in self.family if part in " ".join(one.cmdline()))

    @property
    def terminal(self) -> str:
        return (self.folder / "terminal").read_text(errors="replace")

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str, str]:
        """Status, Retry-After and text; 0 and the error's name without an answer."""
        method = "GET" if body is None else "POST"
        timeout = ClientTimeout(CALL_S)
        try:
            async with (
                session(CALL_S) as client,
                client.request(method, f"{self.url}{path}", json=body, timeout=timeout) as answer,
            ):
                return answer.status, answer.headers.get("Retry-After", ""), await answer.text()
        except (ClientError, TimeoutError, OSError) as error:
            return 0, "", type(error).__name__

    async def is_healthy(self) -> bool:
        if self.process.poll() is not None:
            raise SystemExit(f"`serve run` has ended:\n{self.terminal}")
        return (await self.ask("/health"))[0] == 200


@asynccontextmanager
async def launched(
    prefix: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Service]:
    """`prefix`: a command that runs the one after it. `changes`: of the application's arguments.
    `environment`: in place of cluster/serve.env."""
    folder = Path(tempfile.mkdtemp(prefix="chaos", dir="/tmp"))
    args = small_args() | {
        "target": SMALL_TARGET | {"inflate_to": 90_000_000},
        "drafters": [{"name": "ngram", "kind": "ngram"}],
        "scaling": {"drain_s": DRAIN_S},
    }
    application = {
        "name": "spindle",
        "route_prefix": "/",
        "import_path": "deployments.app:build",
        "args": args | dict(changes or {}),
    }
    config = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": PORT},
        "applications": [application],
    }
    file, ray = folder / "cluster.yaml", folder / "ray"
    file.write_text(yaml.safe_dump(config))
    ray.mkdir()
    command = [str(Path(sys.executable).parent / "serve"), "run", "--working-dir", ".", str(file)]
    own = {"RAY_ADDRESS": "local", "RAY_TMPDIR": str(ray)}
    with (folder / "terminal").open("wb") as terminal:
        process = subprocess.Popen(
            [*prefix, *command],
            cwd=ROOT,
            env=os.environ | dict(ray_environment() if environment is None else environment) | own,
            stdout=terminal,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Service(process, f"http://127.0.0.1:{PORT}", folder)
    finally:
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if one.environ().get("RAY_TMPDIR") == str(ray):
                    one.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def served(
    prefix: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    start_s: float = START_S,
) -> AsyncIterator[Service]:
    """One that answers."""
    async with launched(prefix, changes, environment) as service:
        try:
            await until(service.is_healthy, start_s, "it serves")
        except TimeoutError as error:
            raise SystemExit(f"{error}:\n{service.terminal}") from None
        this = psutil.Process(service.process.pid)
        service.family = [this, *this.children(recursive=True)]
        yield service


async def until(condition: Callable[[], Awaitable[bool]], bound_s: float, what: str) -> float:
    """Seconds that it took."""
    started = time.monotonic()
    while not await condition():
        if time.monotonic() - started > bound_s:
            raise TimeoutError(f"not within {bound_s:.0f} s: {what}")
        await asyncio.sleep(0.3)
    return time.monotonic() - started
