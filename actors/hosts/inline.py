"""Workers in the coordinator's process, each on a thread of its own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from actors.hosts.protocol import HostLost
from actors.hosts.workers import DrafterWorker, VerifierWorker
from cluster.config import DrafterConfig, TargetConfig


def drafter_thread(
    drafter: DrafterConfig, lane: str, target: TargetConfig, stalled_s: float
) -> "WorkerThread":
    return WorkerThread(f"drafter-{lane}", DrafterWorker(drafter, lane, target), stalled_s)


def verifier_thread(
    target: TargetConfig, feature_layers: tuple[int, ...], stalled_s: float
) -> "WorkerThread":
    return WorkerThread("verifier", VerifierWorker(target, feature_layers), stalled_s)


class WorkerThread:
    """A `Caller` (actors/hosts/models.py): runs a worker's calls in order, so that they do not
    block the event loop."""

    def __init__(self, name: str, worker: object, stalled_s: float) -> None:
        self._worker = worker
        self._name = name
        self._stalled_s = stalled_s
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
        """A call that is given up after the longer of `stalled_s` and `expected_s`, twice: a
        process that was stopped as a whole has spent the first wait."""
        allowed_s = max(self._stalled_s, expected_s)
        answer = asyncio.ensure_future(self.call(method, *arguments))
        for _ in range(2):
            await asyncio.wait({answer}, timeout=allowed_s)
            if answer.done():
                return answer.result()
        raise HostLost(f"{self._name} gave no answer for {2 * allowed_s:.1f} s")

    async def recover(self) -> None:
        """Its device is broken, or calls fail or hang: only another process could recover it."""
        raise HostLost("a model in this process fails or hangs, which is not started again")

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
