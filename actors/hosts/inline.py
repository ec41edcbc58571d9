"""Drafters and verifier in the coordinator's process, each on a thread of its own."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from actors.hosts.protocol import HostLost, KvState, TargetCosts
from actors.hosts.specs import DrafterSpec, TargetSpec
from actors.hosts.workers import DrafterWorker, VerifierWorker
from engine.draft_profile import DraftCosts
from engine.protocol import (
    Draft,
    DraftOrder,
    Failed,
    Missing,
    NoRoom,
    Verdict,
    VerifyOrder,
)
from engine.request import TargetLimits
from policies.cost import CostModel
from policies.protocols import StepRule

P = ParamSpec("P")
Result = TypeVar("Result")


class ThreadDrafter:
    cost: CostModel | None = None
    """The cost of one draft step; None until it has been measured."""

    def __init__(self, spec: DrafterSpec, lane: str, target_vocab_size: int) -> None:
        self._worker = DrafterWorker(spec, lane, target_vocab_size)
        self._thread = _Thread(f"drafter-{lane}")

    async def start(self) -> None:
        await self._thread.run(self._worker.load)

    async def size(self) -> float:
        """The number of parameters."""
        return self._worker.size()

    async def feature_layers(self) -> tuple[int, ...]:
        """The target's layers whose hidden states it reads."""
        return self._worker.feature_layers()

    async def measure(self, cache_dir: Path, seconds: float) -> DraftCosts:
        return await self._thread.run(self._worker.measure, cache_dir, seconds)

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom | Failed]:
        return await self._thread.run(self._worker.draft, orders, rule)

    async def forget(self, requests: Collection[str]) -> None:
        await self._thread.run(self._worker.forget, requests)

    async def recover(self) -> None:
        """Its device is broken or every call fails, so only another process could recover it."""
        raise HostLost("a drafter in the replica's process is not started again")

    def close(self) -> None:
        self._thread.close()


class ThreadVerifier:
    limits: TargetLimits
    """Set by `start`."""
    cost: CostModel | None = None
    """The cost of a forward; None until it is known."""

    def __init__(self, spec: TargetSpec) -> None:
        self._worker = VerifierWorker(spec)
        self._thread = _Thread("verifier")

    async def start(self) -> None:
        await self._thread.run(self._worker.load)
        self.limits = self._worker.limits()

    async def measure(self, cache_dir: Path, seconds: float) -> TargetCosts:
        return await self._thread.run(self._worker.measure, cache_dir, seconds)

    async def load_vocabulary(self) -> None:
        self._worker.load_vocabulary()

    async def verify(
        self, orders: Sequence[VerifyOrder]
    ) -> list[Verdict | Missing | NoRoom | Failed]:
        return await self._thread.run(self._worker.verify, orders)

    async def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        return await self._thread.run(self._worker.score, prompt, token_ids)

    async def forget(self, requests: Collection[str]) -> None:
        await self._thread.run(self._worker.forget, requests)

    async def kv_state(self) -> KvState:
        return await self._thread.run(self._worker.kv_state)

    async def recover(self) -> None:
        """Raises HostLost: its device is broken or every call fails, so only another process could
        recover it."""
        raise HostLost("every call to the target in this process fails")

    def close(self) -> None:
        self._thread.close()


class _Thread:
    """Runs a worker's calls in order, so that they do not block the event loop."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, call: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(call, *args, **kwargs))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
