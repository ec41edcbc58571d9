"""Splits the running requests into micro-batches as policies/microbatch.py decides."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from actors.coordinator.estimates import Estimates
from actors.coordinator.request_state import DRAFTED, DRAFTING, READY, RequestState
from actors.coordinator.settings import Lane
from policies.microbatch import MicroBatchParams, split

Batches = Mapping[str | None, Sequence[RequestState]]
"""The requests that start drafting now, by assigned lane; None: only lookups draft for them."""
_REVISED_EVERY = 32
"""Passes after which the number may be revised: planning costs too much for every round."""


class MicroBatches:
    """The number in force, revised where requests have changed lanes."""

    def __init__(
        self, params: MicroBatchParams, estimates: Estimates, lanes: Sequence[Lane]
    ) -> None:
        self._estimates = estimates
        self._sharing = {lane.view.name for lane in lanes if not lane.own_processors}
        self._count = 1
        self.use(params)

    def use(self, params: MicroBatchParams) -> None:
        """Plans again with these parameters in the next pass."""
        self._params = params
        self._members: dict[str | None, int] = {}
        self._passes = _REVISED_EVERY

    def form(self, running: Sequence[RequestState]) -> None:
        """Sets every request's micro-batch."""
        self._passes += 1
        if self._passes >= _REVISED_EVERY:
            lanes = [request.lane for request in running]
            members = {lane: lanes.count(lane) for lane in set(lanes)}
            if members != self._members:
                self._passes = 0
                self._members = members
                self._count = self._fastest(running)
        _form_cohorts(running, self._count)

    def _fastest(self, running: Sequence[RequestState]) -> int:
        by_lane: dict[str | None, list[RequestState]] = {}
        for request in running:
            by_lane.setdefault(request.lane, []).append(request)
        loads = [
            replace(self._estimates.load(lane, requests), own_processors=lane not in self._sharing)
            for lane, requests in by_lane.items()
        ]
        return split(loads, self._estimates.context().verify, self._params)


def _form_cohorts(running: Sequence[RequestState], count: int) -> None:
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


def verified_together(batches: Batches) -> Iterable[Batches]:
    """The batches of each micro-batch, whose lanes are planned at once."""
    by_cohort: dict[int, dict[str | None, list[RequestState]]] = {}
    for lane, batch in batches.items():
        for request in batch:
            by_cohort.setdefault(request.cohort, {}).setdefault(lane, []).append(request)
    return by_cohort.values()


def waiting_for(batches: Batches, running: Sequence[RequestState]) -> list[RequestState]:
    """Other requests of the same micro-batch, which wait for these drafts."""
    names = {request.name for batch in batches.values() for request in batch}
    cohort = next(iter(batches.values()))[0].cohort
    return [
        request
        for request in running
        if request.cohort == cohort and request.prefilled and request.name not in names
    ]


def ready_together(running: Sequence[RequestState], last: int) -> list[RequestState]:
    """One whole micro-batch of all lanes, empty while none is ready. The next one after `last`, or
    one that drafts nothing, and so is ready at once, would keep the verifier to itself."""
    ready = [request for request in running if request.stage is DRAFTED]
    if not ready:
        return ready
    incomplete = {request.cohort for request in running if request.stage in (READY, DRAFTING)}
    whole = {request.cohort for request in ready} - incomplete
    following = min(whole, key=lambda cohort: (cohort <= last, cohort), default=None)
    return [request for request in ready if request.cohort == following]
