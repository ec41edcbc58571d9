"""Sends heartbeats to replicas: that this ingress is alive, how far its clients have read, and
which have left.

A replica that does not answer is given up, whether it has accepted a stream or was only sent one.
If its node has failed without closing connections, this is noticed long before the network reports
it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextvars import Context

from ray.serve.handle import DeploymentHandle

from cluster.config import LimitsConfig
from deployments.ingress.failover import FailoverStream

_LOG = logging.getLogger(__name__)

_FAILED = 256
"""Replicas of which it is remembered that they failed."""
PERIOD_S = 1.0
"""At most this long between two heartbeats to a replica that has, or was sent, one of our
streams."""


class HeartbeatSender:
    """One loop for all streams of the ingress. Must be constructed on the event loop that it runs
    on."""

    def __init__(
        self,
        ingress: str,
        replicas: DeploymentHandle,
        limits: LimitsConfig,
        on_lost: Callable[[], None],
    ) -> None:
        """`on_lost`: called for each replica that is lost: died or hung."""
        self._ingress = ingress
        self._on_lost = on_lost
        self._handle = replicas
        # A replica pauses a stream whose client is, as far as it knows, `unread_tokens` behind. So
        # progress is reported well before that.
        self._urgent_tokens = max(1, limits.unread_tokens // 4)
        self._silent_s = limits.silent_replica_s
        self.silent: set[str] = set()
        """Replicas that have not answered for `silent_replica_s`, until they answer or their call
        fails."""
        self._failed: OrderedDict[str, None] = OrderedDict()
        """Replicas that have not answered in time or whose call failed, since they last answered;
        the latest ones."""
        self.replicas: frozenset[str] = frozenset()
        """All replicas, as the request router last listed them."""
        self._failover_streams: dict[str, FailoverStream] = {}
        self._reported: dict[str, int] = {}
        self._left: dict[str, list[str]] = {}
        """By replica: streams whose clients have left, to be reported with the next heartbeat."""
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._due = asyncio.Event()
        # In a context of its own: a task started in a request's context would be cancelled with it.
        self._context = Context()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), context=self._context)

    def close(self) -> None:
        self._task.cancel()

    def add(self, failover_stream: FailoverStream) -> None:
        self._failover_streams[failover_stream.name] = failover_stream
        self._reported[failover_stream.name] = 0

    def remove(self, failover_stream: FailoverStream) -> None:
        if self._failover_streams.pop(failover_stream.name, None) is None:
            return
        del self._reported[failover_stream.name]
        if failover_stream.replica is not None and not failover_stream.finished:
            self._left.setdefault(failover_stream.replica, []).append(failover_stream.name)
            self._due.set()

    def record_replicas(self, names: Collection[str] | None) -> None:
        """None: the request router has not been reached."""
        if names:
            self.replicas = frozenset(names)

    def probe(self, replica: str) -> None:
        """Sends a heartbeat to a replica that has not answered a call; if it does not answer this
        either, it counts as silent after `silent_replica_s`."""
        if replica not in self._calls:
            self._start_call(replica, {})

    def record_written(self, failover_stream: FailoverStream, tokens: int) -> None:
        """Records that this many output tokens have reached the client."""
        failover_stream.written = tokens
        if failover_stream.name in self._reported and self._is_urgent(failover_stream):
            self._due.set()

    def _is_urgent(self, failover_stream: FailoverStream) -> bool:
        return failover_stream.written - self._reported[failover_stream.name] >= self._urgent_tokens

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(PERIOD_S):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            read = self._read_by_replica()
            for replica in read.keys() | self._left.keys():
                if replica not in self._calls:  # at most one call at a time per replica
                    self._start_call(replica, read.get(replica, {}))

    def _start_call(self, replica: str, read: dict[str, int]) -> None:
        self._reported.update(read)
        call = self._call(replica, read, self._left.pop(replica, []))
        self._calls[replica] = self._loop.create_task(call, context=self._context.copy())

    def _read_by_replica(self) -> dict[str, dict[str, int]]:
        read: dict[str, dict[str, int]] = {}
        for failover_stream in self._failover_streams.values():
            if failover_stream.replica is not None:
                read.setdefault(failover_stream.replica, {})[failover_stream.name] = (
                    failover_stream.written
                )
        return read

    async def _call(self, replica: str, read: dict[str, int], left: list[str]) -> None:
        timer = self._loop.call_later(self._silent_s, self._give_up, replica)
        try:
            await self._handle.heartbeat.remote(
                {"replica": replica, "ingress": self._ingress, "read": read, "left": left}
            )
            self._failed.pop(replica, None)
        except (Exception, asyncio.CancelledError) as error:
            # The replica is lost, which its streams notice themselves; Serve cancels calls, too.
            _LOG.debug("heartbeat to %s failed: %s", replica, error)
            self.record_loss(replica)
        finally:
            timer.cancel()
            self.silent.discard(replica)
            del self._calls[replica]
        served = (one for one in self._failover_streams.values() if one.replica == replica)
        if replica in self._left or any(map(self._is_urgent, served)):
            self._due.set()

    def _give_up(self, replica: str) -> None:
        _LOG.warning("%s has not answered for %g s", replica, self._silent_s)
        self.silent.add(replica)
        self.record_loss(replica)
        for failover_stream in self._failover_streams.values():
            if failover_stream.replica == replica:
                failover_stream.give_up_replica()

    def record_loss(self, replica: str) -> None:
        """Counts the replica once, until it answers again."""
        if replica not in self._failed:
            self._on_lost()
        self._failed[replica] = None
        if len(self._failed) > _FAILED:
            self._failed.popitem(last=False)
