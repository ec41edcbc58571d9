"""Time series of one process: read by `/metrics` at any time, and exported through Ray.

Ray takes microseconds for each record, and a round changes many series. So series of rounds are
sums in this process, which `export` passes on every second; Ray itself reports them more rarely.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Literal, TypedDict

from ray.util.metrics import Counter as RayCounter
from ray.util.metrics import Gauge as RayGauge

from deployments.metrics import Metric
from deployments.ray_internals import export_zero

_PREFIX = "spindle_"


class Sample(TypedDict):
    suffix: str
    labels: dict[str, str]
    value: float


class Family(TypedDict):
    """All samples of one metric in one process, as plain data."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    samples: list[Sample]


class Counter:
    def __init__(self, metric: Metric, own: Mapping[str, str]) -> None:
        """`own`: labels of the process, with their values."""
        self._metric, self._own = metric, dict(own)
        name = _PREFIX + metric.name
        self._ray = RayCounter(name, metric.text, (*own, *metric.labels))
        self._ray.set_default_tags(self._own)
        self._totals: dict[tuple[str, ...], float] = {}
        self._exported: dict[tuple[str, ...], float] = {}

    def start(self, series: Iterable[tuple[str, ...]]) -> None:
        """Exports 0, so that the first increase shows in rates. `series`: values of the labels."""
        for values in series:
            self._totals[values] = self._exported[values] = 0.0
            export_zero(self._ray, self._tags(values))

    def add(self, amount: float, *values: str) -> None:
        """`values`: of the labels, in their order."""
        self._totals[values] = self._totals.get(values, 0.0) + amount

    def export(self) -> None:
        for values, total in self._totals.items():
            increase = total - self._exported.get(values, 0.0)
            if increase > 0:  # Ray raises an error for an increment of 0
                self._exported[values] = total
                self._ray.inc(increase, self._tags(values))

    def family(self) -> Family:
        samples: list[Sample] = [
            {"suffix": "_total", "labels": {**self._own, **self._tags(values)}, "value": total}
            for values, total in self._totals.items()
        ]
        return _family(self._metric, "counter", samples)

    def _tags(self, values: tuple[str, ...]) -> dict[str, str]:
        return dict(zip(self._metric.labels, values, strict=True))


class Gauge:
    def __init__(self, metric: Metric, own: Mapping[str, str]) -> None:
        self._metric, self._own = metric, dict(own)
        self._ray = RayGauge(_PREFIX + metric.name, metric.text, (*own, *metric.labels))
        self._ray.set_default_tags(self._own)
        self._values: dict[tuple[str, ...], float] = {}

    def set(self, value: float, *values: str) -> None:
        self._values[values] = value

    def export(self) -> None:
        """All of them each time: Ray drops a gauge that has not been set for 20 s."""
        for values, value in self._values.items():
            self._ray.set(value, dict(zip(self._metric.labels, values, strict=True)))

    def family(self) -> Family:
        samples: list[Sample] = [
            {
                "suffix": "",
                "labels": {**self._own, **dict(zip(self._metric.labels, values, strict=True))},
                "value": value,
            }
            for values, value in self._values.items()
        ]
        return _family(self._metric, "gauge", samples)


class Histogram:
    """Exported through Ray as gauges with the names of a histogram's parts: Ray's own histograms
    are not there before their first observation, and have no exact sum."""

    def __init__(self, metric: Metric, own: Mapping[str, str]) -> None:
        self._metric, self._own = metric, dict(own)
        self._bounds = list(metric.bounds)
        self._ray = {part: self._gauge(part) for part in ("bucket", "count", "sum")}
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def _gauge(self, part: str) -> RayGauge:
        labels = (*self._own, "le") if part == "bucket" else tuple(self._own)
        gauge = RayGauge(f"{_PREFIX}{self._metric.name}_{part}", self._metric.text, labels)
        gauge.set_default_tags(self._own)
        return gauge

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def export(self) -> None:
        for sample in self._samples():
            labels = {name: value for name, value in sample["labels"].items() if name == "le"}
            self._ray[sample["suffix"].removeprefix("_")].set(sample["value"], labels)

    def family(self) -> Family:
        return _family(self._metric, "histogram", self._samples())

    def _samples(self) -> list[Sample]:
        samples: list[Sample] = []
        count = 0
        for bound, counted in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += counted
            labels = {**self._own, "le": "+Inf" if bound == float("inf") else str(float(bound))}
            samples.append({"suffix": "_bucket", "labels": labels, "value": count})
        samples.append({"suffix": "_count", "labels": self._own, "value": count})
        samples.append({"suffix": "_sum", "labels": self._own, "value": self._sum})
        return samples


def _family(
    metric: Metric, kind: Literal["counter", "gauge", "histogram"], samples: list[Sample]
) -> Family:
    return {"name": metric.name, "kind": kind, "text": metric.text, "samples": samples}
