"""A host's device in virtual time: it serves one call at a time, in order, and may fail."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from actors.hosts.protocol import HostLost
from engine.soft_state import HeldRequest, SoftState

_MAX_REQUESTS = 4096
"""As the engine's hosts."""


@dataclass(frozen=True, slots=True)
class Faults:
    """When a host dies, and how long its restart takes."""

    at_s: Sequence[float] = ()
    recovery_s: float = 1.0


NO_FAULTS = Faults()


class Device:
    """Computes by sleeping."""

    def __init__(
        self,
        name: str,
        transport_s: float = 0.0,
        faults: Faults = NO_FAULTS,
    ) -> None:
        """`transport_s`: round trip of a call, during which the device is free."""
        self._name = name
        self._transport_s = transport_s
        self._deaths = sorted(faults.at_s)
        self._recovery_s = faults.recovery_s
        self._lock = asyncio.Lock()
        self._lost = False

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One call: the device is occupied in the block, and the transport follows it."""
        async with self._lock:
            self._check()
            yield
        if self._transport_s:
            await asyncio.sleep(self._transport_s)

    async def work(self, seconds: float) -> None:
        """Computes, within a turn. Raises HostLost at the time at which the host dies."""
        now = asyncio.get_running_loop().time()
        if self._deaths and self._deaths[0] <= now + seconds:
            await asyncio.sleep(max(0.0, self._deaths.pop(0) - now))
            self._lost = True
            self._check()
        if seconds:
            await asyncio.sleep(seconds)

    async def recover(self) -> None:
        await asyncio.sleep(self._recovery_s)
        self._lost = False

    def _check(self) -> None:
        if self._lost:
            raise HostLost(f"{self._name} is dead")


class SimulatedHost:
    """Soft state on a device: it is lost when the host dies."""

    def __init__(self, device: Device, on_drop: Callable[[str, HeldRequest], None]) -> None:
        self.device = device
        self._state = SoftState(_MAX_REQUESTS, on_drop=on_drop)

    async def forget(self, requests: Collection[str]) -> None:
        async with self.device.turn():
            self._state.forget(requests)

    async def recover(self) -> None:
        await self.device.recover()

    async def _work(self, seconds: float) -> None:
        try:
            await self.device.work(seconds)
        except HostLost:
            self._state.forget(list(self._state))
            raise
