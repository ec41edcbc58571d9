"""How the running requests are cut into micro-batches; policies/microbatch.py decides."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from actors.coordinator.estimates import Estimates
from actors.coordinator.request_state import RequestState
from policies.microbatch import MicroBatchParams, Mode, split

Batches = Mapping[str | None, Sequence[RequestState]]
"""Who may draft now, by the chosen lane."""
_REVISED_EVERY = 32
"""Passes for which a plan stays, although requests move: planning costs more than a round may."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """The number of micro-batches by lane; None is the lane of those that decode plainly."""

    mode: Mode = "barrier"
    parts: Mapping[str | None, int] = field(default_factory=dict)

    @property
    def barrier(self) -> bool:
        return self.mode == "barrier"

    @property
    def cohorts(self) -> int:
        """In Spin's mode all lanes are cut alike."""
        return max(self.parts.values(), default=1)


class MicroBatches:
    def __init__(self, params: MicroBatchParams, estimates: Estimates) -> None:
        self._params = params
        self._estimates = estimates
        self._cutting = Cutting()
        self._members: dict[str | None, int] = {}
        self._passes = _REVISED_EVERY

    def use(self, params: MicroBatchParams) -> None:
        """From the next plan on, which is made at once."""
        self._params = params
        self._members = {}
        self._passes = _REVISED_EVERY

    def cutting(self, running: Sequence[RequestState]) -> Cutting:
        self._passes += 1
        if self._passes >= _REVISED_EVERY:
            lanes = [job.lane for job in running]
            members = {lane: lanes.count(lane) for lane in set(lanes)}
            if members != self._members:
                self._passes = 0
                self._members = members
                self._cutting = self._plan(running)
        return self._cutting

    def _plan(self, running: Sequence[RequestState]) -> Cutting:
        by_lane: dict[str | None, list[RequestState]] = {}
        for job in running:
            by_lane.setdefault(job.lane, []).append(job)
        loads = [self._estimates.load(lane, jobs) for lane, jobs in by_lane.items()]
        best = split(loads, self._estimates.context().verify, self._params)
        return Cutting(best.mode, dict(zip(by_lane, best.parts, strict=True)))


def verified_together(batches: Batches, cutting: Cutting) -> Iterable[Batches]:
    """With Spin's barrier the lanes of one micro-batch are planned as one, and else each alone."""
    if not cutting.barrier:
        return [{lane: batch} for lane, batch in batches.items()]
    by_cohort: dict[int, dict[str | None, Sequence[RequestState]]] = {}
    for lane, batch in batches.items():
        by_cohort.setdefault(batch[0].cohort, {})[lane] = batch
    return by_cohort.values()


def waiting_with(
    batches: Batches, running: Sequence[RequestState], cutting: Cutting
) -> list[RequestState]:
    """Others that the barrier makes wait for these drafts."""
    if not cutting.barrier:
        return []
    here = {job.name for batch in batches.values() for job in batch}
    cohort = next(iter(batches.values()))[0].cohort
    return [
        job for job in running if job.cohort == cohort and job.prefilled and job.name not in here
    ]
