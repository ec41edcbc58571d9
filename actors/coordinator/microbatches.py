"""Splits the running requests into micro-batches as policies/microbatch.py decides."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from actors.coordinator.estimates import Estimates
from actors.coordinator.request_state import READY, RequestState
from policies.microbatch import MicroBatchParams, Mode, split

Batches = Mapping[str | None, Sequence[RequestState]]
"""The requests that start drafting now, by assigned lane; None: those that decode plainly."""
_REVISED_EVERY = 32
"""Passes after which a plan may be revised: planning costs too much for every round."""


@dataclass(frozen=True, slots=True)
class MicroBatchPlan:
    mode: Mode = "barrier"
    parts: Mapping[str | None, int] = field(default_factory=dict)
    """The number of micro-batches by lane; None is the lane of those that decode plainly."""

    @property
    def barrier(self) -> bool:
        return self.mode == "barrier"

    @property
    def cohorts(self) -> int:
        """With Spin's barrier all lanes have the same number of micro-batches."""
        return max(self.parts.values(), default=1)


class MicroBatches:
    def __init__(self, params: MicroBatchParams, estimates: Estimates) -> None:
        self._params = params
        self._estimates = estimates
        self._plan = MicroBatchPlan()
        self._members: dict[str | None, int] = {}
        self._passes = _REVISED_EVERY

    def use(self, params: MicroBatchParams) -> None:
        """Plans again with these parameters in the next pass."""
        self._params = params
        self._members = {}
        self._passes = _REVISED_EVERY

    def plan(self, running: Sequence[RequestState]) -> MicroBatchPlan:
        """The plan in force, revised where requests have changed lanes."""
        self._passes += 1
        if self._passes >= _REVISED_EVERY:
            lanes = [request.lane for request in running]
            members = {lane: lanes.count(lane) for lane in set(lanes)}
            if members != self._members:
                self._passes = 0
                self._members = members
                self._plan = self._fastest(running)
        return self._plan

    def _fastest(self, running: Sequence[RequestState]) -> MicroBatchPlan:
        by_lane: dict[str | None, list[RequestState]] = {}
        for request in running:
            by_lane.setdefault(request.lane, []).append(request)
        loads = [self._estimates.load(lane, requests) for lane, requests in by_lane.items()]
        best = split(loads, self._estimates.context().verify, self._params)
        return MicroBatchPlan(best.mode, dict(zip(by_lane, best.parts, strict=True)))


def form_cohorts(running: Sequence[RequestState], count: int) -> None:
    """Assigns micro-batches of equal size; a request changes its own only between rounds."""
    if count == 1:
        for request in running:
            request.cohort = 0
        return
    size = -(-len(running) // count)
    members = [0] * count
    moving = []
    for request in running:
        settled = 0 <= request.cohort < count and members[request.cohort] < size
        if request.stage is READY and not settled:
            moving.append(request)
        else:
            request.cohort = min(max(request.cohort, 0), count - 1)
            members[request.cohort] += 1
    for request in moving:
        request.cohort = members.index(min(members))
        members[request.cohort] += 1


def verified_together(batches: Batches, plan: MicroBatchPlan) -> Iterable[Batches]:
    """The lanes that are planned at once: with Spin's barrier those of one micro-batch, otherwise
    each lane alone."""
    if not plan.barrier:
        return [{lane: batch} for lane, batch in batches.items()]
    by_cohort: dict[int, dict[str | None, list[RequestState]]] = {}
    for lane, batch in batches.items():
        for request in batch:
            by_cohort.setdefault(request.cohort, {}).setdefault(lane, []).append(request)
    return by_cohort.values()


def waiting_for(
    batches: Batches, running: Sequence[RequestState], plan: MicroBatchPlan
) -> list[RequestState]:
    """Other requests of the same micro-batch, which the barrier makes wait for these drafts."""
    if not plan.barrier:
        return []
    names = {request.name for batch in batches.values() for request in batch}
    cohort = next(iter(batches.values()))[0].cohort
    return [
        request
        for request in running
        if request.cohort == cohort and request.prefilled and request.name not in names
    ]
