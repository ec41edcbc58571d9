"""One for all replicas: pools what each has learned of drafters. It keeps no truth.

Every replica sends the whole of what it has seen so far, again and again, and is answered with
the sum of what the others have: lost messages are made good by the next one, doubled ones change
nothing, and after the router's death its successor knows everything again within a round of
reports. Nothing waits for it (actors/router/replica_side.py).

An ordinary class; deployments/ makes it a Serve deployment actor. Messages are plain built-ins.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from policies.pooling import DRAFTER, Statistics, Vectors, finite_vectors, split_name, weighted_sum


class Report(TypedDict):
    replica: str
    incarnation: int
    """Grows whenever the replica begins anew."""
    version: int
    """Grows with every report."""
    statistics: Statistics


class Answer(TypedDict):
    others: dict[str, list[float]]
    """What the other replicas have seen, summed up."""
    age_s: float
    """Of the router: a young one may not have heard from all of them yet."""


class DrafterView(TypedDict):
    tokens_per_s: float
    slots: float


class ReplicaView(TypedDict):
    incarnation: int
    version: int
    silent_s: float
    weight: float
    """1; of a replica that has departed, what is left of its evidence."""


class View(TypedDict):
    """For people who ask which drafter is best, and whether all replicas are heard."""

    drafters: dict[str, dict[str, DrafterView]]
    """By selection policy; plain decoding is the drafter ""."""
    replicas: dict[str, ReplicaView]


@dataclass(frozen=True, slots=True)
class RouterParams:
    departed_after_s: float = 30.0
    """A replica that has been silent for so long has departed: what it has seen begins to fade."""
    half_life_s: float = 600.0
    """Of the evidence of the departed."""
    least_weight: float = 0.01
    """What has faded to less is dropped."""
    max_replicas: int = 256
    """Remembered at once, the departed included; the longest silent is dropped first."""


@dataclass(frozen=True, slots=True)
class _Heard:
    incarnation: int
    version: int
    at_s: float
    statistics: Vectors


class Router:
    def __init__(self, params: RouterParams = RouterParams()) -> None:
        self._params = params
        self._heard: dict[str, _Heard] = {}
        """By replica, the longest silent first."""
        self._born_s: float | None = None

    async def exchange(self, report: Report) -> Answer:
        now = self._now()
        self._hear(report, now)
        self._drop_faded(now)
        others = (
            (heard.statistics, self._weight(heard, now))
            for replica, heard in self._heard.items()
            if replica != report["replica"]
        )
        return Answer(others=weighted_sum(others), age_s=now - (self._born_s or now))

    async def view(self) -> View:
        now = self._now()
        self._drop_faded(now)
        weights = {name: self._weight(heard, now) for name, heard in self._heard.items()}
        pooled = weighted_sum(
            (heard.statistics, weights[name]) for name, heard in self._heard.items()
        )
        return View(
            drafters=_by_drafter(pooled),
            replicas={
                name: ReplicaView(
                    incarnation=heard.incarnation,
                    version=heard.version,
                    silent_s=now - heard.at_s,
                    weight=weights[name],
                )
                for name, heard in self._heard.items()
            },
        )

    def _now(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._born_s is None:
            self._born_s = now
        return now

    def _hear(self, report: Report, now: float) -> None:
        """A new incarnation replaces the old one; reports that come late or twice are dropped."""
        replica, order = report["replica"], (report["incarnation"], report["version"])
        known = self._heard.get(replica)
        if known is not None and order <= (known.incarnation, known.version):
            return
        statistics = finite_vectors(report["statistics"])
        if statistics is None:
            return
        self._heard.pop(replica, None)  # it comes last again
        self._heard[replica] = _Heard(*order, now, statistics)

    def _drop_faded(self, now: float) -> None:
        for name, heard in list(self._heard.items()):
            crowded = len(self._heard) > self._params.max_replicas
            if crowded or self._weight(heard, now) < self._params.least_weight:
                del self._heard[name]

    def _weight(self, heard: _Heard, now: float) -> float:
        departed_s = max(0.0, now - heard.at_s - self._params.departed_after_s)
        return 0.5 ** (departed_s / self._params.half_life_s)


def _by_drafter(pooled: Mapping[str, list[float]]) -> dict[str, dict[str, DrafterView]]:
    """Of the policies that have tokens, seconds and slots of each drafter, maybe by load."""
    seen: dict[str, dict[str, DrafterView]] = {}
    for name, vector in pooled.items():
        learner, statistic = split_name(name)
        if statistic.startswith(DRAFTER):
            tokens, seconds, slots = np.reshape(vector, (-1, 3)).sum(axis=0).tolist()
            seen.setdefault(learner, {})[statistic.removeprefix(DRAFTER)] = DrafterView(
                tokens_per_s=tokens / seconds if seconds else 0.0, slots=slots
            )
    return seen
