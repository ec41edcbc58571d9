"""Panels of boards and the PromQL of their queries, over the series as Ray exports them."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

_OWN = 'replica=~"$replica"'


class Query(NamedTuple):
    expression: str
    legend: str


class Panel(NamedTuple):
    title: str
    text: str
    unit: str
    queries: Sequence[Query]
    stacked: bool = False
    kind: Literal["timeseries", "bargauge"] = "timeseries"

    @property
    def coloured_by_name(self) -> bool:
        """Its curves are drafters or lanes, which have the same colour in all such panels."""
        return all(query.legend in ("{{drafter}}", "{{host}}") for query in self.queries)


def _summed(series: str, by: str, where: str, function: str = "rate") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} ({function}(ray_spindle_{series}{{{where}}}[$__rate_interval]))"


def _own(more: str) -> str:
    return f"{_OWN}, {more}" if more else _OWN


def rate(name: str, by: str = "", more: str = "") -> str:
    """Of a replica's counter, summed by labels; `more`: further selectors."""
    return _summed(f"{name}_total", by, _own(more))


def increase(name: str, by: str = "") -> str:
    return _summed(f"{name}_total", by, _OWN, "increase")


def of_ingress(name: str, by: str = "", function: str = "rate") -> str:
    return _summed(f"{name}_total", by, "", function)


def gauge(name: str, by: str = "", function: str = "sum") -> str:
    grouped = f" by ({by})" if by else ""
    return f"{function}{grouped} (ray_spindle_{name}{{{_OWN}}})"


def ratio(above: str, below: str) -> str:
    return f"{above} / {below}"


def by_label(name: str, label: str) -> Query:
    return Query(rate(name, label), f"{{{{{label}}}}}")


def quantiles(
    name: str, of_replicas: bool = True, of: Sequence[float] = (0.5, 0.95, 0.99)
) -> list[Query]:
    buckets = _summed(f"{name}_bucket", "le", _OWN if of_replicas else "")
    return [Query(f"histogram_quantile({q}, {buckets})", f"p{q * 100:g}") for q in of]


def speed_up(by: str = "", more: str = "") -> str:
    """The time of plain decoding over the time of the rounds, by the cost model."""
    slots = ", ".join([*([more] if more else []), 'part!="prompts"'])
    return ratio(rate("plain_seconds", by, more), rate("slot_seconds", by, slots))
