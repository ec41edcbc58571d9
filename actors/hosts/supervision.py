"""A host that can die or hang, and is brought back: bounds, back-off, and when it is final.

Knows nothing of Ray: a `Life` is whatever answers calls until it is lost. The only clock is the
event loop's, so all of this is tested in virtual time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from actors.hosts.protocol import HostLost, HostStalled

_LOG = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
STEADY_S = 10.0
"""Whoever has lived so long is restarted at once. One that dies sooner again and again waits, each
time twice as long."""


class Life(Protocol):
    """One life of a host, from its start until it is killed or dies."""

    async def call(self, method: str, *arguments: object) -> Any:
        """Raises HostLost when it is dead; whatever else it raises is its worker's answer."""
        ...

    def kill(self) -> None:
        """It answers nobody any more, not even where it hangs."""
        ...


class Supervised:
    """`begin` starts a life by its number; it returns when the host takes calls."""

    def __init__(
        self,
        name: str,
        begin: Callable[[int], Awaitable[Life]],
        *,
        stalled_s: float,
        recovery_s: float,
        gives_up: bool,
    ) -> None:
        """A start that takes longer than `recovery_s` has failed. `gives_up`: no more starts when
        the host has not answered anything for so long."""
        self.name = name
        self._begin = begin
        self._stalled_s = stalled_s
        self._recovery_s = recovery_s
        self._gives_up = gives_up
        self._clock = asyncio.get_running_loop().time
        self._life: Life | None = None
        self._begun = 0
        """Lives, whether they came to anything or not."""
        self._begun_s = 0.0
        """When the present life was ready."""
        self._short_lives = 0
        """Since the last one that was steady."""
        self._silent_since_s: float | None = None
        """The first loss after the last answer to an order."""
        self._expected_s = 0.0
        """Of all orders that are under way; the host answers them one after the other."""
        self._recovery = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """The first life. However long it takes, and whatever is wrong is raised."""
        self._live(await self._next_life())

    async def order(self, method: str, *arguments: object, expected_s: float) -> Any:
        """What the host is there for, and what that may take."""
        self._expected_s += expected_s
        try:
            answer = await self.call(method, *arguments)
        finally:
            self._expected_s -= expected_s
        self._silent_since_s = None
        return answer

    async def call(self, method: str, *arguments: object) -> Any:
        """Raises HostLost; HostStalled after `stalled_s`, or what the orders that are under way
        are expected to take."""
        life = self._life
        if life is None:
            raise HostLost(f"{self.name} is down")
        allowed_s = max(self._stalled_s, self._expected_s)
        try:
            async with asyncio.timeout(allowed_s):
                return await life.call(method, *arguments)
        except TimeoutError as error:
            self._lose(life)
            raise HostStalled(f"{self.name} gave no answer for {allowed_s:.1f} s") from error
        except HostLost as error:
            self._lose(life)
            raise HostLost(f"{self.name} is lost: {error}") from error

    async def call_patiently(self, method: str, *arguments: object) -> Any:
        """Takes as long as it takes."""
        if self._life is None:
            raise HostLost(f"{self.name} is down")
        return await self._life.call(method, *arguments)

    async def recover(self) -> None:
        """Tries again and again; raises HostLost when it gives up."""
        async with self._recovery:
            while self._life is None and not self._closed:
                await asyncio.sleep(self._pause_s())
                try:
                    async with asyncio.timeout(self._left_s()):
                        self._live(await self._next_life())
                    _LOG.warning("%s is back, life %d", self.name, self._begun - 1)
                except (HostLost, TimeoutError) as error:
                    _LOG.warning("%s did not start: %r", self.name, error)
                    self._short_lives += 1
                    if self._gives_up and self._left_s() <= 0:
                        raise HostLost(
                            f"{self.name} did not come back within {self._recovery_s} s: {error!r}"
                        ) from error

    def close(self) -> None:
        """For good."""
        self._closed = True
        if self._life is not None:
            self._life.kill()
            self._life = None

    async def _next_life(self) -> Life:
        self._begun += 1
        return await self._begin(self._begun - 1)

    def _live(self, life: Life) -> None:
        self._life = life
        self._begun_s = self._clock()
        if self._closed:
            self.close()

    def _lose(self, life: Life) -> None:
        """Several calls may find out about the same death."""
        if self._life is not life:
            return
        life.kill()
        self._life = None
        _LOG.warning("%s is lost", self.name)
        now = self._clock()
        steady = now - self._begun_s >= STEADY_S
        self._short_lives = 0 if steady else self._short_lives + 1
        if self._silent_since_s is None:
            self._silent_since_s = now

    def _pause_s(self) -> float:
        """None before the first restart."""
        if self._short_lives < 2:
            return 0.0
        return min(FIRST_PAUSE_S * 2 ** (self._short_lives - 2), LONGEST_PAUSE_S, self._left_s())

    def _left_s(self) -> float:
        """Of the time that the next start may take."""
        if not self._gives_up or self._silent_since_s is None:
            return self._recovery_s
        return max(0.0, self._silent_since_s + self._recovery_s - self._clock())
