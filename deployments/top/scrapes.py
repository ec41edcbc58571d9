"""Scrapes of a metrics endpoint, and what has happened between two of them."""

import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

_PREFIXES = ("ray_spindle_", "spindle_")
_TIMEOUT_S = 10.0
Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name without prefix, and its labels."""


class Scrape(NamedTuple):
    at_s: float
    values: Mapping[Series, float]


def fetch(url: str, key: str | None) -> str:
    """The text of the endpoint; raises OSError."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        text: str = answer.read().decode()
    return text


def parse(text: str, at_s: float) -> Scrape:
    """Raises ValueError where the text is not Prometheus's."""
    values: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for prefix in _PREFIXES:
                if sample.name.startswith(prefix):
                    labels = tuple(sorted(sample.labels.items()))
                    values[sample.name.removeprefix(prefix), labels] = sample.value
    return Scrape(at_s, values)


class Change:
    """From one scrape to a later one."""

    def __init__(self, before: Scrape, now: Scrape) -> None:
        self._before, self._now = before.values, now.values
        self._seconds = max(1e-9, now.at_s - before.at_s)

    def rates(self, name: str, by: str = "", **where: str) -> dict[str, float]:
        """Of a counter, per second, by the values of a label; `where`: values of labels."""
        sums: dict[str, float] = defaultdict(float)
        for series, labels, value in self._series(name, where):
            before = self._before.get(series, 0.0)
            # A process that has been restarted counts from 0 again.
            sums[labels.get(by, "")] += value - before if value >= before else value
        return {label: total / self._seconds for label, total in sums.items()}

    def rate(self, name: str, **where: str) -> float:
        return sum(self.rates(name, "", **where).values())

    def gauges(self, name: str, by: str = "", **where: str) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for _, labels, value in self._series(name, where):
            sums[labels.get(by, "")] += value
        return dict(sums)

    def gauge(self, name: str, **where: str) -> float:
        return sum(self.gauges(name, "", **where).values())

    def quantile(self, name: str, share: float) -> float | None:
        """Of a histogram's observations in this time, as Prometheus interpolates it; None without
        any."""
        counts = [
            (float(bound), count) for bound, count in self.rates(f"{name}_bucket", "le").items()
        ]
        counts.sort()
        if not counts or counts[-1][1] <= 0.0:
            return None
        wanted = share * counts[-1][1]
        below, counted = 0.0, 0.0
        for bound, count in counts:
            if count >= wanted:
                if bound == float("inf"):
                    return below
                return below + (bound - below) * (wanted - counted) / (count - counted)
            below, counted = bound, count
        return below

    def _series(
        self, name: str, where: Mapping[str, str]
    ) -> Iterator[tuple[Series, dict[str, str], float]]:
        for series, value in self._now.items():
            if series[0] == name:
                labels = dict(series[1])
                if all(labels.get(label) == wanted for label, wanted in where.items()):
                    yield series, labels, value
