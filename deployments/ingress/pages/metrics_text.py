"""Prometheus's text of the series of several processes, for `/metrics`."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from ray.serve.handle import DeploymentHandle

from deployments.ingress.replicas.calls import answer_of
from deployments.series import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus_text(families: Iterable[Family]) -> bytes:
    """Families of one name from several processes become one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


async def families_of(replicas: DeploymentHandle, replica: str) -> list[Family]:
    """The series of one replica; none if it does not answer in time."""
    return await answer_of(replica, replicas.metrics.remote({"replica": replica})) or []


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._metrics: dict[str, Metric] = {}
        for family in families:
            name = f"spindle_{family['name']}"
            metric = self._metrics.setdefault(name, Metric(name, family["text"], family["kind"]))
            for sample in family["samples"]:
                metric.add_sample(name + sample["suffix"], sample["labels"], sample["value"])

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics.values()
