"""A device in virtual time: one call at a time, in their order, and it may fail."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from numpy.random import Generator

from actors.hosts.protocol import HostLost


@dataclass(frozen=True, slots=True)
class Faults:
    """When a host dies, and how long it takes until another one stands in its place."""

    at_s: Sequence[float] = ()
    recovery_s: float = 1.0


NO_FAULTS = Faults()


class Device:
    def __init__(
        self,
        name: str,
        transport_s: float = 0.0,
        faults: Faults = NO_FAULTS,
        draws: Generator | None = None,
    ) -> None:
        """`transport_s`: of one call, there and back; the device is free meanwhile. With `draws`
        it scatters exponentially around that."""
        self._name = name
        self._transport_s = transport_s
        self._draws = draws
        self._deaths = sorted(faults.at_s)
        self._recovery_s = faults.recovery_s
        self._lock = asyncio.Lock()
        self._lost = False
        self.busy_s = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A call, from when the device takes it until its answer has arrived."""
        async with self._lock:
            self._check()
            yield
        if self._transport_s:
            scattered = 1.0 if self._draws is None else self._draws.exponential()
            await asyncio.sleep(self._transport_s * scattered)

    async def work(self, seconds: float) -> None:
        """Within a turn. Raises HostLost at the moment at which the host dies."""
        now = asyncio.get_running_loop().time()
        if self._deaths and self._deaths[0] <= now + seconds:
            await asyncio.sleep(max(0.0, self._deaths.pop(0) - now))
            self._lost = True
            self._check()
        self.busy_s += seconds
        if seconds:
            await asyncio.sleep(seconds)

    async def recover(self) -> None:
        await asyncio.sleep(self._recovery_s)
        self._lost = False

    def _check(self) -> None:
        if self._lost:
            raise HostLost(f"{self._name} is dead")
