"""A replica's side of the exchange with the router: sends its statistics, uses those of the others.

It runs beside the rounds, never within them. While no router answers, a replica continues with its
own statistics, and those of the others fade.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from actors.coordinator.estimates import Estimates
from actors.hosts.facts import Facts
from actors.router.router import Answer, Report
from policies.pooling import Pooled, Statistics, combine, extract, scaled
from policies.request import LaneView

Exchange = Callable[[Report], Awaitable[Answer]]
"""Calls the router, wherever it runs now; may raise any exception."""
Learners = Callable[[], Mapping[str, Pooled]]
"""Returns the present learners, since policies may be replaced while requests run."""


@dataclass(frozen=True, slots=True)
class PoolingParams:
    interval_s: float = 5.0
    """The pause between two reports, and the time limit of an answer."""
    half_life_s: float = 600.0
    """The half-life of the other replicas' statistics while no router answers."""


class Pooling:
    """Run `run` as a task beside the coordinator."""

    def __init__(
        self,
        replica: str,
        incarnation: int,
        exchange: Exchange,
        learners: Learners,
        params: PoolingParams = PoolingParams(),
        facts: Facts | None = None,
    ) -> None:
        """`facts`: what it knows of its models, for replicas that start later."""
        self._replica = replica
        self._incarnation = incarnation
        self._exchange = exchange
        self._learners = learners
        self._facts = dict(facts or {})
        self._params = params
        self._version = 0
        self._others: Statistics = {}
        self.failures = 0
        """Reports that were not answered."""

    async def run(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(self._params.interval_s)

    async def report(self) -> None:
        self._version += 1
        report = Report(
            replica=self._replica,
            incarnation=self._incarnation,
            version=self._version,
            statistics=combine(
                {name: learner.export() for name, learner in self._learners().items()}
            ),
            facts=self._facts,
        )
        interval_s = self._params.interval_s
        try:
            answer = await asyncio.wait_for(self._exchange(report), interval_s)
        except Exception:  # no failure of the exchange may affect serving
            self.failures += 1
            self._others = scaled(self._others, 0.5 ** (interval_s / self._params.half_life_s))
        else:
            # A router that has just started lacks the reports of some replicas: keep the old sums.
            if answer["age_s"] > 2 * interval_s or not self._others:
                self._others = answer["others"]
        await self._update_learners()

    async def _update_learners(self) -> None:
        for name, learner in self._learners().items():
            learner.pool(extract(self._others, name))
            await asyncio.sleep(0)  # a fit takes a while: lets rounds run between two


def learners_of(estimates: Estimates, lanes: Iterable[LaneView]) -> dict[str, Pooled]:
    """What a replica pools: acceptances, and each drafter's calibration."""
    learners: dict[str, Pooled] = {
        f"calibration/{lane.drafter}": estimates.calibrations[lane.name] for lane in lanes
    }
    return {**learners, estimates.acceptance.pool_name: estimates.acceptance}
