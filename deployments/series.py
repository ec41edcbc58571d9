"""Time series of one process: read by `/metrics` at any time, and exported through Ray.

Ray takes microseconds for each record, and a round changes many series. So they are summed in this
process, by Prometheus's own client, and `export` passes them on every second; Ray itself reports
them more rarely.
"""

from collections.abc import Mapping
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, metrics_core
from prometheus_client.samples import Sample
from ray.util.metrics import Counter as RayCounter
from ray.util.metrics import Gauge as RayGauge

from deployments.metrics import PARTS_OF_A_HISTOGRAM, Declared, Kind, Metric
from deployments.ray_internals import export_zero

Family = metrics_core.Metric
"""All samples of one metric in one process."""
_PREFIX = "spindle_"

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Series:
    def __init__(self, declared: Declared, own: Mapping[str, str]) -> None:
        """`own`: labels of the process, with their values."""
        self._own = dict(own)
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        self._children: dict[tuple[str, ...], Any] = {}
        """By the metric's name and the values of its labels."""
        self._ray: dict[str, RayCounter | RayGauge] = {}
        """By the name of their samples."""
        self._exported: dict[tuple[str, ...], float] = {}
        for kind, metrics in declared:
            for metric in metrics:
                self._declare(kind, metric)

    def start(self, name: str, *values: str) -> None:
        """Begins a series with 0, so that the first increase shows in rates."""
        self._child(name, values)

    def add(self, name: str, amount: float, *values: str) -> None:
        """`values`: of the labels, in their order."""
        if amount > 0:
            self._child(name, values).inc(amount)

    def set(self, name: str, value: float, *values: str) -> None:
        self._child(name, values).set(value)

    def observe(self, name: str, value: float) -> None:
        self._child(name, ()).observe(value)

    def families(self) -> list[Family]:
        return list(self._registry.collect())

    def export(self) -> None:
        """All gauges each time: Ray drops one that has not been set for 20 s."""
        for family in self.families():
            for sample in family.samples:
                self._export(sample)

    def _declare(self, kind: Kind, metric: Metric) -> None:
        name, labels = _PREFIX + metric.name, (*self._own, *metric.labels)
        given: dict[str, Any] = {"labelnames": labels, "registry": self._registry}
        match kind:
            case "counter":
                self._metrics[metric.name] = Counter(name, metric.text, **given)
                self._ray[f"{name}_total"] = RayCounter(name, metric.text, labels)
            case "gauge":
                self._metrics[metric.name] = Gauge(name, metric.text, **given)
                self._ray[name] = RayGauge(name, metric.text, labels)
            case "histogram":
                histogram = Histogram(name, metric.text, buckets=metric.bounds, **given)
                self._metrics[metric.name] = histogram
                # As gauges: Ray's own histograms are not there before their first observation, and
                # have no exact sum.
                for part in PARTS_OF_A_HISTOGRAM:
                    of_part = (*labels, "le") if part == "bucket" else labels
                    self._ray[f"{name}_{part}"] = RayGauge(f"{name}_{part}", metric.text, of_part)
                self.start(metric.name)

    def _child(self, name: str, values: tuple[str, ...]) -> Any:
        child = self._children.get((name, *values))
        if child is None:
            metric, labels = self._metrics[name], (*self._own.values(), *values)
            child = self._children[name, *values] = metric.labels(*labels) if labels else metric
        return child

    def _export(self, sample: Sample) -> None:
        ray, key = self._ray[sample.name], (sample.name, *sample.labels.values())
        if isinstance(ray, RayGauge):
            ray.set(sample.value, sample.labels)
            return
        increase = sample.value - self._exported.get(key, 0.0)
        if increase > 0:  # Ray raises an error for an increment of 0
            ray.inc(increase, sample.labels)
        elif key not in self._exported:
            export_zero(ray, sample.labels)
        self._exported[key] = sample.value
