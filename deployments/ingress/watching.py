"""What operators and the playground see of all replicas: series for `/metrics`, and the numbers of
the last seconds."""

import asyncio
from collections.abc import Collection, Iterable
from typing import Annotated

from fastapi import Query
from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict
from ray.serve.handle import DeploymentHandle

from cluster.config import AppConfig
from deployments.ingress.replicas import answer_of
from deployments.ingress.requests.fields import SloTargets
from deployments.messages import LiveQuery
from deployments.metrics import PLAIN
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


_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos"
_VLLM_TEXTS = {
    _DRAFTS: "Number of spec decoding drafts.",
    _DRAFT_TOKENS: "Number of draft tokens.",
    _ACCEPTED: "Number of accepted tokens.",
    _ACCEPTED_AT: "Accepted tokens per draft position.",
}


def as_vllm(families: Iterable[Family], model: str) -> list[Family]:
    """The replicas' counts of drafts by the names and labels of vLLM's server, for boards made for
    it; each replica is an engine."""
    counts: dict[tuple[str, ...], float] = {}

    def add(value: float, *key: str) -> None:
        counts[key] = counts.get(key, 0.0) + value

    for sample in (sample for family in families for sample in family.samples):
        labels, value = sample.labels, sample.value
        match sample.name:
            case "spindle_rounds_total" if labels["drafter"] != PLAIN:
                add(value, _DRAFTS, labels["replica"])
            case "spindle_verified_tokens_total":
                add(value, _DRAFT_TOKENS, labels["replica"])
            case "spindle_accepted_tokens_total":
                add(value, _ACCEPTED, labels["replica"])
                # Here positions begin with 1, there with 0.
                at = str(int(labels["position"].rstrip("+")) - 1)
                add(value, _ACCEPTED_AT, labels["replica"], at)
    counters = {
        name: CounterMetricFamily(
            name,
            text,
            labels=["model_name", "engine", *(["position"] if name == _ACCEPTED_AT else [])],
        )
        for name, text in _VLLM_TEXTS.items()
    }
    for (name, *values), count in counts.items():
        counters[name].add_metric([model, *values], count)
    return list(counters.values())


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
