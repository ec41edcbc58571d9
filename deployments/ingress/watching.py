"""What operators and the playground see of all replicas: series for `/metrics`, and the numbers of
the last seconds."""

import asyncio
from collections.abc import Collection, Iterable
from typing import Annotated

from fastapi import Query
from prometheus_client import generate_latest
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict
from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig
from deployments.ingress.replicas import answer_of
from deployments.ingress.requests.fields import SloTargets
from deployments.messages import LiveQuery
from deployments.replica.live import LONGEST_S, ReplicaNumbers
from deployments.series import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Merged(Collector):
    """Families of one name from several processes as one."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families: dict[str, Family] = {}
        for family in families:
            known = self._families.setdefault(family.name, family)
            if known is not family:
                known.samples += family.samples

    def collect(self) -> Iterable[Family]:
        return self._families.values()


def prometheus_text(families: Iterable[Family]) -> bytes:
    return generate_latest(_Merged(families))


async def families_of(replicas: DeploymentHandle, replica: str) -> list[Family]:
    """The series of one replica; none if it does not answer in time."""
    return await answer_of(replica, replicas.metrics.remote({"replica": replica})) or []


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
    hidden: bool
    """Whether they are left out, as for a tenant that is no operator."""


async def live(
    config: AppConfig,
    replicas: DeploymentHandle,
    names: Collection[str],
    seconds: float,
    *,
    hidden: bool,
) -> LiveView:
    queries: list[LiveQuery] = [{"replica": name, "seconds": seconds} for name in sorted(names)]
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
        hidden=hidden,
    )
