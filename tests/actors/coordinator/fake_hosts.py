"""Real drafters and a real verifier that take virtual time, and can be lost on demand."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from actors.hosts.isolation import as_callback
from actors.hosts.protocol import HostLost
from engine.kv.blocks import KvState
from engine.protocol import (
    Draft,
    Drafter,
    DraftOrder,
    Failed,
    Missing,
    NoRoom,
    Verdict,
    Verifier,
    VerifyOrder,
)
from engine.request import TargetLimits
from policies.protocols import StepRule

Lost = Callable[[int], bool]


def never(_call: int) -> bool:
    return False


class PacedDrafter:
    """Loses its state and raises HostLost in the calls whose numbers `lost` accepts, and in those
    for the request `killer`. `slow`: how long calls of these numbers take."""

    killer: str | None = None

    def __init__(
        self,
        make: Callable[[], Drafter],
        seconds: float = 0.001,
        lost: Lost = never,
        slow: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self._make = make
        self._drafter = make()
        self._seconds = seconds
        self._lost = lost
        self._slow = slow
        self.calls = 0
        self.most_requests = 0
        self.missing = 0

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom]:
        self.calls += 1
        self.most_requests = max(self.most_requests, len(orders))
        call = self.calls
        await asyncio.sleep(self._slow.get(call, self._seconds))
        if self._lost(call) or self.killer in {order.prefix.request for order in orders}:
            raise HostLost("the drafter is gone")
        answers = self._drafter.draft(orders, as_callback(rule))
        self.missing += sum(isinstance(answer, Missing) for answer in answers)
        return answers

    async def forget(self, requests: Collection[str]) -> None:
        self._drafter.forget(requests)

    async def recover(self) -> None:
        await asyncio.sleep(0.05)
        self._drafter = self._make()


class PacedVerifier:
    """Loses its state and raises HostLost in the calls whose numbers `lost` accepts, and in those
    that would bring the request `killer` a token."""

    killer: str | None = None

    def __init__(
        self, make: Callable[[], Verifier], seconds: float = 0.01, lost: Lost = never
    ) -> None:
        self._make = make
        self.verifier = make()
        self._seconds = seconds
        self._lost = lost
        self.calls = 0
        self.batches: list[list[str]] = []
        self.brought: list[set[str]] = []
        """The requests to which each call has brought a token."""

    @property
    def limits(self) -> TargetLimits:
        verifier = self.verifier
        return TargetLimits(
            verifier.vocab_size,
            verifier.max_context,
            verifier.stop_token_ids,
            verifier.verifies_trees,
        )

    async def verify(
        self, orders: Sequence[VerifyOrder]
    ) -> Sequence[Verdict | Missing | NoRoom | Failed]:
        self.calls += 1
        self.batches.append([order.prefix.request for order in orders])
        await asyncio.sleep(self._seconds)
        answers = self.verifier.verify(orders)
        brought = {one.request for one in answers if isinstance(one, Verdict) and one.tokens}
        lost = self._lost(self.calls) or self.killer in brought
        self.brought.append(set() if lost else brought)
        if lost:
            raise HostLost("the verifier is gone")
        return answers

    async def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        return self.verifier.score(prompt, token_ids)

    async def forget(self, requests: Collection[str]) -> None:
        self.verifier.forget(requests)

    async def kv_state(self) -> KvState:
        raise HostLost("not available in this fake")

    async def recover(self) -> None:
        await asyncio.sleep(0.5)
        self.verifier = self._make()
