"""Counts replicas that come and go, and finds out why each has gone."""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from ray._private import state  # the public API needs a dashboard
from ray.core.generated.common_pb2 import ActorDiedErrorContext

from deployments.ingress.metrics import IngressMetrics
from deployments.ingress.replicas.heartbeat_sender import HeartbeatSender
from deployments.metrics import LOST, STOPPED

_LOG = logging.getLogger(__name__)


class Departures:
    def __init__(self, metrics: IngressMetrics, heartbeats: HeartbeatSender) -> None:
        self._metrics = metrics
        self._heartbeats = heartbeats
        self._shown: frozenset[str] = frozenset()

    def show(self) -> None:
        """Counts what has changed since the last call."""
        present = self._heartbeats.replicas
        if not present:  # not known yet
            return
        left = self._shown - present
        self._metrics.replicas_started(len(present - self._shown))
        self._shown = present
        for name in left:
            self._count(name)

    def _count(self, name: str) -> None:
        if self._heartbeats.has_failed(name):
            self._add(name, LOST)
            return
        # In a thread, because Ray answers from another process. An asyncio task would be cancelled
        # together with the request in which it was started.
        asking = asyncio.get_running_loop().run_in_executor(None, reason_of, name)
        asking.add_done_callback(partial(self._add_answer, name))

    def _add_answer(self, name: str, asking: "asyncio.Future[str]") -> None:
        failed = asking.cancelled() or asking.exception() is not None
        self._add(name, LOST if failed else asking.result())

    def _add(self, name: str, reason: str) -> None:
        _LOG.info("replica %s takes no calls any more: %s", name, reason)
        self._metrics.replica_left(reason)


def reason_of(replica: str) -> str:
    """`stopped` if Serve has ended the replica or is about to, else `lost`."""
    return next((_reason(actor) for actor in _actors(replica)), LOST)


def _actors(replica: str) -> Iterable[dict[str, object]]:
    actors = state.actors().values()
    return (actor for actor in actors if str(actor["Name"]).endswith(f"#{replica}"))


def _reason(actor: dict[str, object]) -> str:
    if actor["State"] != "DEAD":  # it drains
        return STOPPED
    died = getattr(actor["DeathCause"], "actor_died_error_context", None)
    killed = died is not None and died.reason == ActorDiedErrorContext.Reason.RAY_KILL
    return STOPPED if killed else LOST
