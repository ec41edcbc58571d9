"""A replica's side of the exchange with the router: sends its statistics, uses those of the others.

It runs beside the rounds, never within them. While no router answers, a replica continues with its
own statistics and the last ones of the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from actors.router.router import Report
from policies.pooling import ByLearner, Pooled

Exchange = Callable[[Report], Awaitable[ByLearner]]
"""Calls the router, wherever it runs now; may raise any exception."""
Learners = Mapping[str, Pooled]
"""By the names under which replicas share their statistics, which stay when code is renamed."""


_INTERVAL_S = 5.0
"""The pause between two reports, and the time limit of an answer."""


class Pooling:
    """Run `run` as a task beside the coordinator."""

    def __init__(
        self,
        replica: str,
        exchange: Exchange,
        learners: Learners,
    ) -> None:
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
