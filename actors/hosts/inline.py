"""Workers in the coordinator's process, each on a thread of its own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from actors.hosts.protocol import HostLost
from actors.hosts.workers import DrafterWorker, VerifierWorker
from cluster.config import DrafterConfig, TargetConfig


def drafter_thread(drafter: DrafterConfig, lane: str, target: TargetConfig) -> "WorkerThread":
    return WorkerThread(f"drafter-{lane}", DrafterWorker(drafter, lane, target))


def verifier_thread(target: TargetConfig, feature_layers: tuple[int, ...]) -> "WorkerThread":
    return WorkerThread("verifier", VerifierWorker(target, feature_layers))


class WorkerThread:
    """A `Caller` (actors/hosts/models.py): runs a worker's calls in order, so that they do not
    block the event loop."""

    def __init__(self, name: str, worker: object) -> None:
        self._worker = worker
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def start(self) -> None:
        await self.call("load")

    async def call(self, method: str, *arguments: object) -> Any:
        loop = asyncio.get_running_loop()
        work = partial(getattr(self._worker, method), *arguments)
        return await loop.run_in_executor(self._executor, work)

    async def call_without_timeout(self, method: str, *arguments: object) -> Any:
        return await self.call(method, *arguments)

    async def order(self, method: str, *arguments: object, expected_s: float) -> Any:
        return await self.call(method, *arguments)

    async def recover(self) -> None:
        """Its device is broken or every call fails, so only another process could recover it."""
        raise HostLost("every call to a model in this process fails, which is not started again")

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
