"""The numbers of all replicas' last seconds, for the playground (docs/playground.md): no texts."""

import asyncio
from collections.abc import Collection
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict
from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig
from deployments.ingress.fields import SloTargets
from deployments.ingress.replica_calls import answer_of
from deployments.messages import Live
from deployments.replica.live import LONGEST_S

Seconds = Annotated[float, Query(gt=0, le=LONGEST_S, description="How far back the numbers go.")]


class _Shown(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class HostNumbers(_Shown):
    name: str
    """A lane's, or `verifier`."""
    drafter: str | None
    """The lane's drafter."""
    busy: list[tuple[float, float]]
    """From when to when it worked, by the replica's clock; at most the latest 512."""


class ReplicaNumbers(_Shown):
    replica: str
    now_s: float
    """The replica's clock."""
    seconds: float
    """How far back the numbers go: nothing is recorded while nobody asks."""
    running: int
    waiting: int
    goodput: float
    """Output tokens per second."""
    attainment: float | None
    """The share of the last 64 requests with an SLO that met it."""
    drafted: dict[str, int]
    """Draft tokens that were verified, by drafter; `lookups` where only lookups drafted."""
    accepted: dict[str, int]
    """Those that the target agreed with."""
    hosts: list[HostNumbers]


class LiveView(_Shown):
    """GET /spindle/live."""

    model: str
    drafters: list[str]
    slo_classes: dict[str, SloTargets]
    replicas: list[ReplicaNumbers]
    """Those that have answered in time."""


async def live(
    config: AppConfig, replicas: DeploymentHandle, names: Collection[str], seconds: float
) -> dict[str, object]:
    """A body as LiveView describes it, which is not checked against it again."""
    calls = (
        answer_of(name, replicas.live.remote({"replica": name, "seconds": seconds}))
        for name in sorted(names)
    )
    numbers: list[Live | None] = await asyncio.gather(*calls)
    classes = config.slo_classes.items()
    return {
        "model": config.served_name,
        "drafters": [drafter.name for drafter in config.drafters],
        "slo_classes": {
            name: {"ttft_ms": one.ttft_ms, "tpot_ms": one.tpot_ms} for name, one in classes
        },
        "replicas": [one for one in numbers if one is not None],
    }
