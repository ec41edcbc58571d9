"""The router: one for all replicas, pools what each has learned of drafters. It holds soft state.

Every replica periodically sends its cumulative statistics and is answered with the sum of the
others'. So a lost message is made up for by the next one, a duplicate changes nothing, and a new
router has everything again after one report of each replica. No replica waits for it
(actors/router/replica_side.py).

An ordinary class; deployments/ makes it a Serve deployment actor. Messages are plain built-ins.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from actors.hosts.facts import Facts
from policies.pooling import ByLearner, is_finite, summed


class Report(TypedDict):
    replica: str
    statistics: ByLearner
    facts: Facts
    """What the replica knows of its models."""


KEPT_S = 1800.0
"""What a replica has learned is kept for so long after its last report, for those that come after
it."""
MOST_REPLICAS = 256
"""Departed ones included; the longest silent is dropped first."""
MOST_MODELS = 256
"""The most models whose facts are kept; the one reported first is dropped first."""


@dataclass(frozen=True, slots=True)
class _Received:
    at_s: float
    statistics: ByLearner


class Router:
    def __init__(self) -> None:
        self._received: dict[str, _Received] = {}
        """By replica, the longest silent first."""
        self._facts: dict[str, Sequence[float]] = {}
        """The model that was reported first comes first."""

    async def exchange(self, report: Report) -> ByLearner:
        """The sum of the other replicas' statistics."""
        replica = report["replica"]
        if is_finite(report["statistics"]):  # else one replica's fault would reach all others
            self._received.pop(replica, None)  # so that it comes last
            self._received[replica] = _Received(_now(), report["statistics"])
        self._drop_departed()
        self._facts |= report["facts"]
        while len(self._facts) > MOST_MODELS:
            del self._facts[next(iter(self._facts))]
        return summed(
            received.statistics for name, received in self._received.items() if name != replica
        )

    async def facts(self) -> Facts:
        """What replicas know of their models, for one that starts."""
        return self._facts

    async def replicas(self) -> list[str]:
        """Those whose statistics are kept, the longest silent first."""
        self._drop_departed()
        return list(self._received)

    def _drop_departed(self) -> None:
        for name, received in list(self._received.items()):
            if len(self._received) > MOST_REPLICAS or received.at_s < _now() - KEPT_S:
                del self._received[name]


def _now() -> float:
    return asyncio.get_running_loop().time()
