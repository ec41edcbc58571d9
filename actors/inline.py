"""Drafters and verifier inside the coordinator's process, each on a thread of its own."""

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from engine.protocol import (
    ContinueDrafting,
    Draft,
    Drafter,
    DraftOrder,
    DraftStep,
    Missing,
    NoRoom,
    Verdict,
    Verifier,
    VerifyOrder,
    to_ordered_depth,
)
from engine.request import TargetLimits
from policies.protocols import StepRule


def as_callback(rule: StepRule | None) -> ContinueDrafting:
    """A policy's rule in the form in which drafters ask."""
    if rule is None:
        return to_ordered_depth

    def go_on(step: DraftStep) -> Sequence[bool]:
        return rule(step.depth, step.requests, step.frontier)

    return go_on


class ThreadDrafter:
    """A drafter whose forwards leave the event loop free."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"drafter-{drafter.name}")

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, self._drafter.draft, orders, as_callback(rule)
        )

    async def forget(self, requests: Collection[str]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._drafter.forget, requests)

    async def recover(self) -> None:
        """Threads do not get lost."""


class DirectDrafter:
    """A drafter so cheap (a lookup) that a thread would cost more than its work."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom]:
        return self._drafter.draft(orders, as_callback(rule))

    async def forget(self, requests: Collection[str]) -> None:
        self._drafter.forget(requests)

    async def recover(self) -> None:
        """Nothing here gets lost."""


class ThreadVerifier:
    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._limits = TargetLimits(
            verifier.vocab_size, verifier.max_context, verifier.stop_token_ids
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verifier")

    @property
    def limits(self) -> TargetLimits:
        return self._limits

    async def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._verifier.verify, orders)

    async def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._verifier.score, prompt, token_ids)

    async def forget(self, requests: Collection[str]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._verifier.forget, requests)

    async def recover(self) -> None:
        """Threads do not get lost."""
