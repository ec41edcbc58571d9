"""Prometheus's text of the series of several processes, for `/metrics`."""

import asyncio
import logging
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from ray.serve.handle import DeploymentHandle

from deployments.series import Family

_LOG = logging.getLogger(__name__)
_WAIT_S = 2.0
"""How long `/metrics` waits for a replica."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def prometheus_text(families: Iterable[Family]) -> bytes:
    """Families of one name from several processes become one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


async def families_of(replicas: DeploymentHandle, replica: str) -> list[Family]:
    """The series of one replica; none if it does not answer in time."""
    call = replicas.metrics.remote({"replica": replica})
    try:
        async with asyncio.timeout(_WAIT_S):
            families: list[Family] = await call
    except Exception as error:  # the replica is lost, or slow
        _LOG.warning("%s sends no metrics: %s", replica, error)
        return []
    return families


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
