"""The router: one for all replicas, pools what each has learned of drafters. It holds soft state
and routes no requests (deployments/routing.py does).

Every replica periodically sends its cumulative statistics and is answered with the sum of the
others'. So a lost message is made up for by the next one, a duplicate changes nothing, and a new
router has everything again after one report of each replica. No replica waits for it (`Pooling`).

An ordinary class; deployments/ makes it a Serve deployment actor. Messages are plain built-ins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypedDict

from policies.pooling import ByLearner, Pooled, is_finite, summed


class Report(TypedDict):
    replica: str
    statistics: ByLearner


KEPT_S = 1800.0
"""What a replica has learned is kept for so long after its last report, for those that come after
it."""
MOST_REPLICAS = 256
"""Departed ones included; the longest silent is dropped first."""


@dataclass(frozen=True, slots=True)
class _Received:
    at_s: float
    statistics: ByLearner


class Router:
    def __init__(self) -> None:
        self._received: dict[str, _Received] = {}
        """By replica, the longest silent first."""

    async def exchange(self, report: Report) -> ByLearner:
        """The sum of the other replicas' statistics."""
        replica = report["replica"]
        if is_finite(report["statistics"]):  # else one replica's fault would reach all others
            self._received.pop(replica, None)  # so that it comes last
            self._received[replica] = _Received(_now(), report["statistics"])
        self._drop_departed()
        return summed(
            received.statistics for name, received in self._received.items() if name != replica
        )

    def _drop_departed(self) -> None:
        for name, received in list(self._received.items()):
            if len(self._received) > MOST_REPLICAS or received.at_s < _now() - KEPT_S:
                del self._received[name]


def _now() -> float:
    return asyncio.get_running_loop().time()


Exchange = Callable[[Report], Awaitable[ByLearner]]
"""Calls the router, wherever it runs now; may raise any exception."""
Learners = Mapping[str, Pooled]
"""By the names under which replicas share their statistics, which stay when code is renamed."""


_INTERVAL_S = 5.0
"""The pause between two reports, and the time limit of an answer."""


class Pooling:
    """Run `run` as a task beside the coordinator."""

    def __init__(self, replica: str, exchange: Exchange, learners: Learners) -> None:
        self._replica = replica
        self._exchange = exchange
        self._learners = learners
        self._others: ByLearner = {}

    async def run(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(_INTERVAL_S)

    async def report(self) -> None:
        own = {name: learner.export() for name, learner in self._learners.items()}
        report = Report(replica=self._replica, statistics=own)
        with suppress(Exception):  # no failure of the exchange may affect serving
            self._others = await asyncio.wait_for(self._exchange(report), _INTERVAL_S)
        for name, learner in self._learners.items():
            learner.pool(self._others.get(name, {}))
