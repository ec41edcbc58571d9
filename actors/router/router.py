"""The router: one for all replicas, pools what each has learned of drafters. It holds soft state.

Every replica periodically sends its cumulative statistics and is answered with the sum of the
others'. So a lost message is made up for by the next one, a duplicate changes nothing, and a new
router has everything again after one report of each replica. No replica waits for it
(actors/router/replica_side.py).

An ordinary class; deployments/ makes it a Serve deployment actor. Messages are plain built-ins.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from actors.hosts.facts import Facts
from policies.estimates.acceptance import COLUMNS, AcceptanceEstimates, accepted_levels
from policies.pooling import Statistics, Vectors, finite_vectors, split_name, weighted_sum


class Report(TypedDict):
    replica: str
    incarnation: int
    """Increases with every restart of the replica."""
    version: int
    """Increases with every report."""
    statistics: Statistics
    facts: Facts
    """What the replica knows of its models."""


class Answer(TypedDict):
    others: dict[str, list[float]]
    """The sum of the other replicas' statistics."""
    age_s: float
    """The router's age: a new one may lack the reports of some replicas."""


class AcceptanceView(TypedDict):
    accepted: float
    """The share of drafted levels of which a token is accepted."""
    levels: float
    """How many levels that is the mean of."""


class ReplicaView(TypedDict):
    incarnation: int
    version: int
    silent_s: float
    weight: float
    """1; decays towards 0 for a replica that has departed."""


class View(TypedDict):
    """For operators: how good each drafter is, and which replicas report."""

    acceptance: dict[str, AcceptanceView]
    """By drafter."""
    replicas: dict[str, ReplicaView]


@dataclass(frozen=True, slots=True)
class RouterParams:
    departed_after_s: float = 30.0
    """A replica that has not reported for so long has departed: its statistics begin to fade."""
    half_life_s: float = 600.0
    """The half-life of the statistics of departed replicas."""
    least_weight: float = 0.01
    """Statistics that have faded to less are dropped."""
    max_replicas: int = 256
    """The most replicas kept, departed ones included; the longest silent is dropped first."""
    max_models: int = 256
    """The most models of which facts are kept; the one reported first is dropped first."""


@dataclass(frozen=True, slots=True)
class _Received:
    incarnation: int
    version: int
    at_s: float
    statistics: Vectors


class Router:
    def __init__(self, params: RouterParams = RouterParams()) -> None:
        self._params = params
        self._received: dict[str, _Received] = {}
        """By replica, the longest silent first."""
        self._facts: dict[str, Sequence[float]] = {}
        """The model that was reported first comes first."""
        self._started_s: float | None = None
        """The time of the first call."""

    async def exchange(self, report: Report) -> Answer:
        now = self._now()
        self._receive(report, now)
        self._facts |= report["facts"]
        while len(self._facts) > self._params.max_models:
            del self._facts[next(iter(self._facts))]
        self._drop_faded(now)
        others = (
            (received.statistics, self._weight(received, now))
            for replica, received in self._received.items()
            if replica != report["replica"]
        )
        return Answer(others=weighted_sum(others), age_s=now - (self._started_s or now))

    async def facts(self) -> Facts:
        """What replicas know of their models, for one that starts."""
        return self._facts

    async def view(self) -> View:
        now = self._now()
        self._drop_faded(now)
        weights = {name: self._weight(received, now) for name, received in self._received.items()}
        pooled = weighted_sum(
            (received.statistics, weights[name]) for name, received in self._received.items()
        )
        return View(
            acceptance=_acceptance(pooled),
            replicas={
                name: ReplicaView(
                    incarnation=received.incarnation,
                    version=received.version,
                    silent_s=now - received.at_s,
                    weight=weights[name],
                )
                for name, received in self._received.items()
            },
        )

    def _now(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._started_s is None:
            self._started_s = now
        return now

    def _receive(self, report: Report, now: float) -> None:
        """A new incarnation replaces the old one; late and duplicate reports are dropped."""
        replica, order = report["replica"], (report["incarnation"], report["version"])
        known = self._received.get(replica)
        if known is not None and order <= (known.incarnation, known.version):
            return
        statistics = finite_vectors(report["statistics"])
        if statistics is None:
            return
        self._received.pop(replica, None)  # so that it comes last
        self._received[replica] = _Received(*order, now, statistics)

    def _drop_faded(self, now: float) -> None:
        for name, received in list(self._received.items()):
            crowded = len(self._received) > self._params.max_replicas
            if crowded or self._weight(received, now) < self._params.least_weight:
                del self._received[name]

    def _weight(self, received: _Received, now: float) -> float:
        departed_s = max(0.0, now - received.at_s - self._params.departed_after_s)
        return 0.5 ** (departed_s / self._params.half_life_s)


def _acceptance(pooled: Mapping[str, list[float]]) -> dict[str, AcceptanceView]:
    views: dict[str, AcceptanceView] = {}
    for name, vector in pooled.items():
        learner, drafter = split_name(name)
        if learner == AcceptanceEstimates.pool_name and len(vector) == COLUMNS:
            accepted, levels = accepted_levels(np.array(vector))
            views[drafter] = AcceptanceView(
                accepted=accepted / levels if levels else 0.0, levels=levels
            )
    return views
