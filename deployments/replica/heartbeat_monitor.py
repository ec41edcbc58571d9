"""Ends the streams of a lost ingress: an ingress sends a heartbeat at least once a second, and one
whose heartbeats stop for too long counts as lost."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


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
        return asyncio.get_running_loop().call_later(self._silent_s, self._expire, ingress)

    def _expire(self, ingress: str) -> None:
        for stream in self._ingresses.pop(ingress).streams:
            self._cancel(stream)
