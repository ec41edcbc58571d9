"""What operators and the playground see of all replicas: series for `/metrics`, the numbers of the
last seconds, and traces of what they do (`/debug/trace`)."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Annotated

from fastapi import Query
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict
from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig
from deployments.ingress.replicas import answer_of
from deployments.ingress.requests.fields import SloTargets
from deployments.messages import LiveQuery, TraceQuery
from deployments.replica.live import LONGEST_S, ReplicaNumbers
from deployments.replica.timeline import TraceEvent
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


Seconds = Annotated[float, Query(gt=0, le=LONGEST_S, description="How far back the numbers go.")]


class LiveView(BaseModel):
    """GET /spindle/live."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: str
    """The model's name."""
    drafters: list[str]
    """All that can be chosen."""
    slo_classes: dict[str, SloTargets]
    """The config's, by name."""
    replicas: list[ReplicaNumbers]
    """Those that have answered in time."""


async def live(
    config: AppConfig,
    replicas: DeploymentHandle,
    names: Collection[str],
    seconds: float,
    tenant: str | None,
) -> LiveView:
    """`tenant`: only what its own requests explain; None: everything."""
    queries: list[LiveQuery] = [
        {"replica": name, "seconds": seconds, "tenant": tenant} for name in sorted(names)
    ]
    calls = [answer_of(query["replica"], replicas.live.remote(query)) for query in queries]
    numbers: list[ReplicaNumbers | None] = await asyncio.gather(*calls)
    classes = config.slo_classes.items()
    return LiveView(
        model=config.served_name,
        drafters=[drafter.name for drafter in config.drafters],
        slo_classes={
            name: SloTargets(ttft_ms=one.ttft_ms, tpot_ms=one.tpot_ms) for name, one in classes
        },
        replicas=[one for one in numbers if one is not None],
    )


LONGEST_TRACE_S = 60.0
_SLACK_S = 10.0
"""How long a replica may take to answer, beyond the time that it records."""
TraceSeconds = Annotated[float, Query(gt=0, le=LONGEST_TRACE_S)]


async def traces(
    replicas: DeploymentHandle, names: Collection[str], seconds: float
) -> list[TraceEvent]:
    """What these replicas do from now on."""
    calls = [
        _of_replica(replicas, {"replica": name, "seconds": seconds, "process": number})
        for number, name in enumerate(sorted(names))
    ]
    return list(chain(*await asyncio.gather(*calls)))


async def _of_replica(replicas: DeploymentHandle, query: TraceQuery) -> list[TraceEvent]:
    """Nothing of a replica that is lost meanwhile, or does not answer."""
    try:
        async with asyncio.timeout(query["seconds"] + _SLACK_S):
            events: list[TraceEvent] = await replicas.trace.remote(query)
    except Exception:
        return []
    return events
