"""Time series of one process, kept for `/metrics` and exported through Ray at the same time."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from ray.util.metrics import Counter as RayCounter
from ray.util.metrics import Gauge as RayGauge
from ray.util.metrics import Histogram as RayHistogram

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
    def __init__(self, name: str, text: str, labels: Sequence[str], own: Mapping[str, str]) -> None:
        """`own`: labels of the process, with their values."""
        self._name, self._text, self._own = name, text, dict(own)
        self._ray = RayCounter(_PREFIX + name, text, (*own, *labels)).set_default_tags(self._own)
        self._totals: dict[tuple[tuple[str, str], ...], float] = defaultdict(float)

    def start(self, **labels: str) -> None:
        """Exports 0, so that the first increase shows in rates."""
        self._totals[tuple(labels.items())] += 0.0
        self._ray._record(0.0, labels)  # `inc` refuses 0

    def add(self, amount: float = 1, **labels: str) -> None:
        if amount > 0:  # Ray raises an error for an increment of 0
            self._totals[tuple(labels.items())] += amount
            self._ray.inc(amount, labels)

    def family(self) -> Family:
        samples: list[Sample] = [
            {"suffix": "_total", "labels": {**self._own, **dict(labels)}, "value": total}
            for labels, total in self._totals.items()
        ]
        return {"name": self._name, "kind": "counter", "text": self._text, "samples": samples}


class Gauge:
    def __init__(self, name: str, text: str, own: Mapping[str, str]) -> None:
        self._name, self._text, self._own = name, text, dict(own)
        self._ray = RayGauge(_PREFIX + name, text, tuple(own)).set_default_tags(self._own)
        self._value = 0.0

    def set(self, value: float) -> None:
        self._value = value
        self._ray.set(value)

    def family(self) -> Family:
        samples: list[Sample] = [{"suffix": "", "labels": self._own, "value": self._value}]
        return {"name": self._name, "kind": "gauge", "text": self._text, "samples": samples}


class Histogram:
    def __init__(
        self, name: str, text: str, bounds: Sequence[float], own: Mapping[str, str]
    ) -> None:
        self._name, self._text, self._own = name, text, dict(own)
        self._bounds = list(bounds)
        self._ray = RayHistogram(_PREFIX + name, text, self._bounds, tuple(own))
        self._ray.set_default_tags(self._own)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        self._ray.observe(value)

    def family(self) -> Family:
        samples: list[Sample] = []
        count = 0
        for bound, counted in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += counted
            labels = {**self._own, "le": "+Inf" if bound == float("inf") else str(float(bound))}
            samples.append({"suffix": "_bucket", "labels": labels, "value": count})
        samples.append({"suffix": "_count", "labels": self._own, "value": count})
        samples.append({"suffix": "_sum", "labels": self._own, "value": self._sum})
        return {"name": self._name, "kind": "histogram", "text": self._text, "samples": samples}
