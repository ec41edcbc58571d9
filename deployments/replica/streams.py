"""The streams that ingresses send to a replica: how they are submitted or refused, and how those of
a lost ingress end.

An ingress sends a heartbeat at least once a second; one whose heartbeats stop for too long counts
as lost.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.coordinator.stream import Overloaded, Stream
from deployments import messages
from deployments.messages import Refused, StreamRequest
from engine.errors import InvalidRequest, SpindleError

if TYPE_CHECKING:  # takes a second to import, which building the application need not wait
    from actors.coordinator.loop import Coordinator

_LOG = logging.getLogger(__name__)


def submit(coordinator: "Coordinator", request: StreamRequest) -> Stream:
    """The coordinator's exceptions pass through."""
    speculation = request["speculation"]
    return coordinator.submit(
        # With the attempt's number, because an earlier attempt may not have left yet.
        f"{request['name']}#{request['attempt']}",
        request["prompt_ids"],
        request["params"],
        slo=request["slo"],
        priority=request["priority"],
        tenant=request["tenant"],
        scope=request["scope"],
        remember=request["remember"],
        output=request["output_ids"],
        attempt=request["attempt"],
        speculate=speculation["enabled"],
        drafter=speculation["drafter"],
        max_depth=speculation["max_depth"],
        traced=request["trace"],
        may_teach=request["may_teach"],
    )


def refusal(error: SpindleError, request: StreamRequest) -> Refused:
    if isinstance(error, Overloaded):
        return messages.refused(429, error)
    if not isinstance(error, InvalidRequest):
        _LOG.warning("request %s is not served: %s", request["name"], error)
        return messages.cannot_serve()
    return messages.refused(400, error)


@dataclass(slots=True)
class _Ingress:
    timer: asyncio.TimerHandle
    streams: set[str] = field(default_factory=set)


class HeartbeatMonitor:
    """Runs on an event loop, whose time is its only clock."""

    def __init__(self, silent_s: float, cancel: Callable[[str], None]) -> None:
        self._silent_s = silent_s
        self._cancel = cancel
        self._ingresses: dict[str, _Ingress] = {}

    def add_stream(self, stream: str, ingress: str) -> None:
        """Registers a stream, which also counts as a heartbeat of its ingress."""
        if ingress not in self._ingresses:
            self._ingresses[ingress] = _Ingress(self._timer(ingress))
        self._ingresses[ingress].streams.add(stream)
        self.record_heartbeat(ingress)

    def record_heartbeat(self, ingress: str) -> None:
        """Restarts the ingress's timer; an ingress without streams here is ignored."""
        known = self._ingresses.get(ingress)
        if known is not None:
            known.timer.cancel()
            known.timer = self._timer(ingress)

    def remove_stream(self, stream: str, ingress: str) -> None:
        known = self._ingresses.get(ingress)
        if known is None:
            return
        known.streams.discard(stream)
        if not known.streams:
            known.timer.cancel()
            del self._ingresses[ingress]

    def _timer(self, ingress: str) -> asyncio.TimerHandle:
        return self._later(self._doubt, ingress)

    def _later(self, call: Callable[[str], None], ingress: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._silent_s / 2, call, ingress)

    def _doubt(self, ingress: str) -> None:
        """At half of the time: a process that was stopped reads only now what has arrived."""
        self._ingresses[ingress].timer = self._later(self._expire, ingress)

    def _expire(self, ingress: str) -> None:
        for stream in self._ingresses.pop(ingress).streams:
            self._cancel(stream)
