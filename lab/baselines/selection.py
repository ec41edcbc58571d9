"""The greedy and ε-greedy selections of Spin's Figure 11."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policies.protocols import RoundContext
from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.lane_capacity import LaneCapacity, unmatched_values
from policies.selection.lbss import MeanGoodput
from policies.selection.membership import Membership


class Greedy:
    """Shorter prompts to smaller drafters, each filled to its B_j before the next (Spin, VI-B2)."""

    def __init__(self) -> None:
        self._membership = Membership()
        self._mapping: dict[str, str | None] = {}

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        if self._membership.changed(requests, lanes):
            # The larger a drafter, the longer its step.
            steps = {lane: cost.predict(0, 1) for lane, cost in context.draft.items()}
            smallest_first = sorted(lanes, key=lambda lane: steps.get(lane.name, 0.0))
            places = [lane.name for lane in smallest_first for _ in range(lane.capacity)]
            shortest_first = sorted(requests, key=lambda request: request.prompt_len)
            names = [request.name for request in shortest_first]
            self._mapping = dict.fromkeys(names) | dict(zip(names, places, strict=False))
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        return self._mapping.get(request)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def forget(self, request: str) -> None:
        self._membership.forget(request)
        self._mapping.pop(request, None)


@dataclass(frozen=True, slots=True)
class EpsilonGreedyParams:
    epsilon: float = 0.1
    """Probability of a random lane."""

    @property
    def explore(self) -> float:
        return self.epsilon


@dataclass(frozen=True, slots=True)
class SpinEpsilonGreedyParams:
    epsilon: float = 0.2
    """Probability of the lane that has been best so far: Spin's ε is that of exploitation."""

    @property
    def explore(self) -> float:
        return 1 - self.epsilon


class EpsilonGreedy:
    """In each slot of a request a random lane, or the one with the best mean goodput so far."""

    def __init__(
        self,
        params: EpsilonGreedyParams | SpinEpsilonGreedyParams = EpsilonGreedyParams(),
        seed: int = 0,
    ) -> None:
        if not 0 <= params.epsilon <= 1:
            raise ValueError(f"epsilon is a probability, not {params.epsilon}")
        self._explore = params.explore
        self._rng = np.random.default_rng(seed)
        self._membership = Membership()
        self._goodput = MeanGoodput()
        self._mapping: dict[str, str | None] = {}
        self._due: set[str] = set()
        """The requests whose slot has ended since the last decision."""

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        if self._membership.changed(requests, lanes) or self._due:
            self._mapping = self._decide(lanes)
            self._due.clear()
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        """The best lane so far, since a random one is not known in advance."""
        lanes = self._membership.lanes.values()
        if request not in self._mapping or not lanes:
            return None
        return max(lanes, key=lambda lane: self._goodput.estimate(request, lane.drafter)).name

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            self._learn(outcome)

    def _learn(self, outcome: RoundOutcome) -> None:
        if outcome.request not in self._mapping:
            return
        self._due.add(outcome.request)
        drafter, seconds = self._membership.slot(outcome)
        if drafter is not None and seconds is not None:
            self._goodput.observe(outcome.request, drafter, outcome.committed / seconds)

    def forget(self, request: str) -> None:
        self._membership.forget(request)
        self._goodput.forget(request)
        self._mapping.pop(request, None)
        self._due.discard(request)

    def _decide(self, lanes: Sequence[LaneView]) -> dict[str, str | None]:
        """Requests in the middle of a slot keep their lanes; then those that explore are assigned,
        then the others."""
        capacity = LaneCapacity(lanes)
        mapping: dict[str, str | None] = {}
        deciding: list[str] = []
        for name in self._membership.requests:
            lane = self._mapping.get(name)
            if name in self._due or lane is None or not capacity.take(lane):
                deciding.append(name)
            else:
                mapping[name] = lane
        if not lanes or not deciding:
            return mapping | dict.fromkeys(deciding)
        exploring = self._rng.random(len(deciding)) < self._explore
        drawn = self._rng.integers(len(lanes), size=len(deciding))
        drawn_lanes = {
            name: lanes[index].name
            for name, index, explores in zip(deciding, drawn, exploring, strict=True)
            if explores
        }
        exploiting = [name for name in deciding if name not in drawn_lanes]
        mapping |= capacity.assign_drawn(drawn_lanes, self._rng)
        if exploiting:
            values = self._goodput.matrix(exploiting, lanes)
            unmatched = unmatched_values(values, np.zeros(len(exploiting)))
            mapping |= capacity.match(exploiting, values, unmatched, self._mapping)
        return mapping
