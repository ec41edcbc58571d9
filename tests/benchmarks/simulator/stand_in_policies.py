"""Minimal policies, so that the simulator's tests do not depend on the product's policies."""

from collections.abc import Mapping, Sequence

import numpy as np

from actors.coordinator.settings import Policies
from benchmarks.simulator.run import MakePolicies
from policies.protocols import (
    Candidates,
    DraftLimit,
    DraftPlan,
    LaneBatch,
    Mask,
    RoundContext,
    StepRule,
)
from policies.request import LaneView, RequestView, RoundOutcome


class ArrivalOrder:
    def arrive(self, request: RequestView, now: float) -> None: ...

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        return [view.name for view in requests][:slots]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None: ...

    def forget(self, request: str) -> None: ...


class RotatingLanes:
    """Distributes requests r0, r1, ... evenly to the lanes, and moves each to the next lane after
    every `period` rounds."""

    def __init__(self, period: int) -> None:
        self._period = period
        self._rounds = 0
        self._next: dict[str, str] = {}

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        if not lanes:
            return {view.name: None for view in requests}
        chosen: dict[str, str | None] = {}
        for view in requests:
            lane = int(view.name[1:]) + self._rounds // self._period
            chosen[view.name] = lanes[lane % len(lanes)].name
            self._next[view.name] = lanes[(lane + 1) % len(lanes)].name
        return chosen

    def likely_next(self, request: str) -> str | None:
        return self._next.get(request)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._rounds += len(outcomes)

    def forget(self, request: str) -> None:
        self._next.pop(request, None)


class FixedLength:
    def __init__(self, depth: int, width: int = 1, rule: StepRule | None = None) -> None:
        self._limit = DraftLimit(depth, width)
        self._rule = rule

    def plan(
        self, batches: Sequence[LaneBatch], context: RoundContext, now: float
    ) -> list[DraftPlan]:
        return [DraftPlan([self._limit] * len(batch.requests), self._rule) for batch in batches]

    def select(self, candidates: Candidates, context: RoundContext, now: float) -> Mask:
        return np.ones(len(candidates.trees.tokens), np.bool_)


def policies(
    depth: int = 4,
    width: int = 1,
    rule: StepRule | None = None,
    period: int = 1 << 30,
    schedule: type[ArrivalOrder] = ArrivalOrder,
) -> MakePolicies:
    return lambda _calibrations: Policies(
        schedule(), RotatingLanes(period), FixedLength(depth, width, rule)
    )
