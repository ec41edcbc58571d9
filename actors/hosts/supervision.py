"""Supervises a host that may die or hang: time limits, restarts with back-off, giving up.

Independent of Ray: an `Incarnation` is anything that answers calls until it is lost. The only clock
is the event loop's, so that tests run in virtual time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from actors.hosts.protocol import HostLost
from actors.hosts.rpc_channel import WorkerFailed

_LOG = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
STEADY_S = 10.0
"""A host that has run for so long is restarted at once. One that is lost sooner again and again is
restarted after pauses, each twice as long as the last."""

MOST_FAILURES = 3
"""A worker that cannot load its model may lack memory that the process before it has not given
back yet; one that fails so often will not load it."""


class Incarnation(Protocol):
    """One process, or group of processes, of a host, from its start until it is lost or killed."""

    async def call(self, method: str, *arguments: object) -> Any:
        """Raises HostLost when it is dead; any other exception is one of its worker."""
        ...

    def kill(self) -> None:
        """Ends it, even if it hangs; every waiting and later call raises HostLost."""
        ...


class Supervised:
    """A host that is started again in a new incarnation whenever it is lost."""

    def __init__(
        self,
        name: str,
        launch: Callable[[int], Awaitable[Incarnation]],
        *,
        stalled_s: float,
        recovery_s: float,
        gives_up: bool,
    ) -> None:
        """`launch` starts the incarnation of a number and returns when it takes calls; a restart
        that takes longer than `recovery_s` has failed. `gives_up`: no more restarts when the host
        has answered no order for `recovery_s`."""
        self.name = name
        self._launch = launch
        self._stalled_s = stalled_s
        self._recovery_s = recovery_s
        self._gives_up = gives_up
        self._clock = asyncio.get_running_loop().time
        self._incarnation: Incarnation | None = None
        """None while the host is down."""
        self._launches = 0
        """Failed ones included."""
        self._ready_since_s = 0.0
        self._early_losses = 0
        """Since the last steady incarnation: those lost before STEADY_S, and failed starts."""
        self._silent_since_s: float | None = None
        """The first loss after the last answer to an order."""
        self._expected_s = 0.0
        """The sum over all orders under way, because the host answers them one after the other."""
        self._recovery = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Starts the first incarnation, without a time limit; raises its error if it fails."""
        self._accept(await self._launch_next())

    async def order(self, method: str, *arguments: object, expected_s: float) -> Any:
        """A call that is expected to take `expected_s`; its answer shows that the host works."""
        self._expected_s += expected_s
        try:
            answer = await self.call(method, *arguments)
        finally:
            self._expected_s -= expected_s
        self._silent_since_s = None
        return answer

    async def call(self, method: str, *arguments: object) -> Any:
        """Raises HostLost, also after the longer of `stalled_s` and what the orders under
        way are expected to take."""
        incarnation = self._incarnation
        if incarnation is None:
            raise HostLost(f"{self.name} is down")
        allowed_s = max(self._stalled_s, self._expected_s)
        try:
            async with asyncio.timeout(allowed_s):
                answer = await incarnation.call(method, *arguments)
        except TimeoutError as error:
            self._lose(incarnation)
            raise HostLost(f"{self.name} gave no answer for {allowed_s:.1f} s") from error
        except HostLost as error:
            self._lose(incarnation)
            raise HostLost(f"{self.name} is lost: {error}") from error
        return answer

    async def call_without_timeout(self, method: str, *arguments: object) -> Any:
        if self._incarnation is None:
            raise HostLost(f"{self.name} is down")
        return await self._incarnation.call(method, *arguments)

    async def recover(self) -> None:
        """Restarts the host until it takes calls. Raises HostLost when it gives up, WorkerFailed
        when the worker has failed MOST_FAILURES times in turn."""
        failures = 0
        async with self._recovery:
            while self._incarnation is None and not self._closed:
                await asyncio.sleep(self._pause_s())
                try:
                    async with asyncio.timeout(self._left_s()):
                        self._accept(await self._launch_next())
                    _LOG.warning("%s is back, life %d", self.name, self._launches - 1)
                except (HostLost, TimeoutError, WorkerFailed) as error:
                    _LOG.warning("%s did not start: %r", self.name, error)
                    self._early_losses += 1
                    failures = failures + 1 if isinstance(error, WorkerFailed) else 0
                    if failures == MOST_FAILURES:
                        raise
                    if self._gives_up and self._left_s() <= 0:
                        raise HostLost(
                            f"{self.name} did not come back within {self._recovery_s} s: {error!r}"
                        ) from error

    def close(self) -> None:
        """Kills the host and starts it no more."""
        self._closed = True
        if self._incarnation is not None:
            self._incarnation.kill()
            self._incarnation = None

    async def _launch_next(self) -> Incarnation:
        self._launches += 1
        return await self._launch(self._launches - 1)

    def _accept(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._ready_since_s = self._clock()
        if self._closed:  # while it was starting
            self.close()

    def _lose(self, incarnation: Incarnation) -> None:
        """Several calls may find the same loss."""
        if self._incarnation is not incarnation:
            return
        incarnation.kill()
        self._incarnation = None
        _LOG.warning("%s is lost", self.name)
        now = self._clock()
        steady = now - self._ready_since_s >= STEADY_S
        self._early_losses = 0 if steady else self._early_losses + 1
        if self._silent_since_s is None:
            self._silent_since_s = now

    def _pause_s(self) -> float:
        """The pause before the next restart; there is none before the first."""
        if self._early_losses < 2:
            return 0.0
        return min(FIRST_PAUSE_S * 2 ** (self._early_losses - 2), LONGEST_PAUSE_S, self._left_s())

    def _left_s(self) -> float:
        """The time limit of the next restart."""
        if not self._gives_up or self._silent_since_s is None:
            return self._recovery_s
        return max(0.0, self._silent_since_s + self._recovery_s - self._clock())
