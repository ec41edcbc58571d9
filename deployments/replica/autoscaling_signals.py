"""The signals that a replica reports to Serve's autoscaler: queue, goodput, SLO attainment."""

from collections import deque
from collections.abc import Iterable

from actors.coordinator.events import Event, Left, Verified
from actors.coordinator.stream import Statistics

_WINDOW_S = 10.0
"""Goodput is a mean over this time."""
_SLO_REQUESTS = 64
"""SLO attainment is a mean over this many of the latest requests that have an SLO,"""
_SLO_S = 300.0
"""if they have ended within this time: those of an earlier load say nothing of the present one."""


class AutoscalingSignals:
    def __init__(self) -> None:
        self._commits: deque[tuple[float, int]] = deque()
        self._met: deque[tuple[float, bool]] = deque(maxlen=_SLO_REQUESTS)

    def observe(self, event: Event) -> None:
        if isinstance(event, Verified):
            tokens = sum(outcome.committed for outcome in event.outcomes)
            self._commits.append((event.at_s, tokens))
            self._trim(event.at_s)
        elif isinstance(event, Left) and (met := met_slo(event)) is not None:
            self._met.append((event.at_s, met))

    def read(self, served: Iterable[Statistics], now: float) -> dict[str, float]:
        """The present signals; `served`: statistics of the requests on this replica."""
        self._trim(now)
        started = [statistics.queue_s is not None for statistics in served]
        return {
            "running": float(sum(started)),
            "waiting": float(len(started) - sum(started)),
            "goodput": sum(tokens for _, tokens in self._commits) / _WINDOW_S,
            "attainment": 1.0 if self.attainment is None else self.attainment,
        }

    @property
    def attainment(self) -> float | None:
        """The share of the latest requests with an SLO that met it; None: there were none."""
        return sum(met for _, met in self._met) / len(self._met) if self._met else None

    def _trim(self, now: float) -> None:
        while self._commits and self._commits[0][0] < now - _WINDOW_S:
            self._commits.popleft()
        while self._met and self._met[0][0] < now - _SLO_S:
            self._met.popleft()


def tpot_s(left: Left) -> float | None:
    """Mean time per output token after the first; None with fewer than two tokens."""
    first_s = left.view.first_token_s
    tokens = left.view.generated - 1
    return None if first_s is None or tokens < 1 else (left.at_s - first_s) / tokens


def met_slo(left: Left) -> bool | None:
    """Whether the request met its SLO; None if it had none or did not finish."""
    slo = left.view.slo
    if left.finish is None or left.internal or (slo.ttft_s is None and slo.tpot_s is None):
        return None
    ttft_s = left.statistics.ttft_s
    per_token_s = tpot_s(left)
    on_time = slo.ttft_s is None or ttft_s is None or ttft_s <= slo.ttft_s
    in_pace = slo.tpot_s is None or per_token_s is None or per_token_s <= slo.tpot_s
    return on_time and in_pace
