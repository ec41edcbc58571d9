"""Streams that nobody will read: an ingress gives a sign of life at least once a second, and the
streams of one that has fallen silent are ended."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Ingress:
    timer: asyncio.TimerHandle
    streams: set[str] = field(default_factory=set)


class HeartbeatMonitor:
    """Lives on an event loop, whose time is the only clock."""

    def __init__(self, bound_s: float, end: Callable[[str], None]) -> None:
        self._bound_s = bound_s
        self._end = end
        self._ingresses: dict[str, _Ingress] = {}

    def begin(self, stream: str, ingress: str) -> None:
        """A stream is itself a sign of life."""
        if ingress not in self._ingresses:
            self._ingresses[ingress] = _Ingress(self._timer(ingress))
        self._ingresses[ingress].streams.add(stream)
        self.record_heartbeat(ingress)

    def record_heartbeat(self, ingress: str) -> None:
        """A sign of life; one of an ingress without streams here is no error."""
        known = self._ingresses.get(ingress)
        if known is not None:
            known.timer.cancel()
            known.timer = self._timer(ingress)

    def leave(self, stream: str, ingress: str) -> None:
        known = self._ingresses.get(ingress)
        if known is None:
            return
        known.streams.discard(stream)
        if not known.streams:
            known.timer.cancel()
            del self._ingresses[ingress]

    def _timer(self, ingress: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._bound_s, self._silent, ingress)

    def _silent(self, ingress: str) -> None:
        for stream in self._ingresses.pop(ingress).streams:
            self._end(stream)
