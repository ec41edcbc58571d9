"""The numbers of all replicas' last seconds, for the playground (docs/playground.md): no texts."""

import asyncio
from collections.abc import Collection
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict
from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig
from deployments.ingress.replicas.calls import answer_of
from deployments.ingress.requests.fields import SloTargets
from deployments.messages import LiveQuery
from deployments.replica.live import LONGEST_S, ReplicaNumbers

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
