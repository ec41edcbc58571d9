"""A replica's side of the router: tells what was seen here, learns what others have seen.

Beside the rounds, never in them: while no router answers, a replica goes on with what it knows,
and what it was told of others fades.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from actors.coordinator.estimates import Estimates
from actors.coordinator.settings import Policies
from actors.router.router import Answer, Report
from policies.pooling import Pooled, Statistics, combine, extract, scaled
from policies.request import LaneView

Exchange = Callable[[Report], Awaitable[Answer]]
"""Reaches the router, wherever it is now; may raise anything."""
Learners = Callable[[], Mapping[str, Pooled]]
"""Those in force; policies may be exchanged while requests run."""


@dataclass(frozen=True, slots=True)
class PoolingParams:
    interval_s: float = 5.0
    """Between two reports; an answer that takes longer is given up."""
    half_life_s: float = 600.0
    """Of what was told of others, while no router answers."""


class Pooling:
    """Spawn its `run` beside the coordinator's loop."""

    def __init__(
        self,
        replica: str,
        incarnation: int,
        exchange: Exchange,
        learners: Learners,
        params: PoolingParams = PoolingParams(),
    ) -> None:
        self._replica = replica
        self._incarnation = incarnation
        self._exchange = exchange
        self._learners = learners
        self._params = params
        self._version = 0
        self._others: Statistics = {}
        self.failures = 0
        """Reports that no router has answered."""

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
            statistics=combine({name: one.export() for name, one in self._learners().items()}),
        )
        interval_s = self._params.interval_s
        try:
            answer = await asyncio.wait_for(self._exchange(report), interval_s)
        except Exception:  # whatever it is, serving goes on
            self.failures += 1
            self._others = scaled(self._others, 0.5 ** (interval_s / self._params.half_life_s))
        else:
            # A young router has not heard from all again, and would have us forget them.
            if answer["age_s"] > 2 * interval_s or not self._others:
                self._others = answer["others"]
        await self._tell()

    async def _tell(self) -> None:
        for name, learner in self._learners().items():
            learner.pool(extract(self._others, name))
            await asyncio.sleep(0)  # a fit takes a while: rounds go on between them


def learners_of(
    policies: Policies, estimates: Estimates, lanes: Iterable[LaneView]
) -> dict[str, Pooled]:
    """What a replica pools: its selection, if that learns, and each drafter's calibration."""
    learners: dict[str, Pooled] = {
        f"calibration/{lane.drafter}": estimates.calibrations[lane.name] for lane in lanes
    }
    if isinstance(policies.selection, Pooled):
        learners[type(policies.selection).__name__] = policies.selection
    return learners
