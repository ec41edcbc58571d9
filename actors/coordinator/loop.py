"""The round loop (DESIGN section 6): who runs, draft, select, verify, commit.

Requests move through the stages of actors/coordinator/request_state.py. Whenever something has
changed, one pass starts whatever can be started: drafting on idle lanes, then a verification if
the verifier is idle. So lanes draft the next micro-batch while the verifier is busy with the last
one, and requests join and leave at any round.

The event loop's time is the only clock, and in a round only hosts are awaited: the simulator
runs this very code in virtual time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from actors.coordinator.background_tasks import Tasks
from actors.coordinator.catch_up import CatchUp
from actors.coordinator.drafting import Drafting
from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Arrived, Event, Left, Preempted
from actors.coordinator.lanes import Lanes
from actors.coordinator.microbatches import MicroBatches
from actors.coordinator.request_state import (
    GONE,
    READY,
    WAITING,
    Cancelled,
    Overloaded,
    RequestFailed,
    RequestState,
    Statistics,
    Stream,
)
from actors.coordinator.settings import Lane, Limits, Policies
from actors.coordinator.verifying import Verifying
from actors.hosts.protocol import KvState, VerifierHost
from engine.errors import InvalidRequest, SpindleError
from engine.request import admit
from engine.sampling.params import SamplingParams, check_integer, check_number
from policies import ranges
from policies.microbatch import MicroBatchParams
from policies.precompile import warm_up
from policies.request import RequestView, Slo

_DEFAULT_LIMITS = Limits()
_DEFAULT_PIPELINE = MicroBatchParams()
_LOG = logging.getLogger("spindle")
_NO_SLO = Slo()
_KV_BLOCK = 16
"""A running request is given so many tokens of KV more than it has: its next round."""


class Coordinator:
    """Made on the event loop that it lives on. `close` ends it and every stream."""

    def __init__(
        self,
        verifier: VerifierHost,
        lanes: Sequence[Lane],
        policies: Policies,
        estimates: Estimates,
        limits: Limits = _DEFAULT_LIMITS,
        pipeline: MicroBatchParams = _DEFAULT_PIPELINE,
        observe: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        warm_up()
        self._target = verifier.limits
        if limits.kv_tokens < self._target.max_context:
            raise ValueError(
                f"limits.kv_tokens is {limits.kv_tokens}, less than the {self._target.max_context} "
                "tokens that one request may have: a request could wait for ever"
            )
        self._policies = policies
        self._limits = limits
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[str, RequestState] = {}
        self._running: dict[str, RequestState] = {}
        """Those with a batch slot, in the order in which they got it."""
        self._stalls: dict[str, asyncio.TimerHandle] = {}
        self._kv_room = limits.kv_tokens
        self._gone: list[str] = []
        self._failure: SpindleError | None = None
        self._pass_is_due = False
        self._tasks = Tasks(self._stop)
        self._microbatches = MicroBatches(pipeline, estimates)
        self._lanes = Lanes(lanes, observe, self._tasks, self._wake)
        self._drafting = Drafting(self._lanes, estimates, observe, self._tasks, self._wake)
        self._reading = CatchUp(
            self._lanes,
            limits.catch_up_tokens,
            estimates,
            observe,
            self._tasks,
            self._wake,
        )
        self._verifying = Verifying(
            verifier,
            limits,
            estimates,
            observe,
            self._tasks,
            self._wake,
            {lane.view.name for lane in lanes if lane.free},
        )

    @property
    def alive(self) -> bool:
        return self._failure is None

    def submit(
        self,
        name: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        slo: Slo = _NO_SLO,
        priority: int = 0,
        tenant: str = "",
        output: Sequence[int] = (),
        attempt: int = 0,
        speculate: bool = True,
        max_depth: int | None = None,
        drafter: str | None = None,
        internal: bool = False,
    ) -> Stream:
        """Raises InvalidRequest naming the field, or Overloaded. `output` and `attempt`: of a
        request that another coordinator has begun. `drafter`: the only one that may draft for
        it. `internal`: of the system itself."""
        if self._failure is not None:
            raise self._failure
        if name in self._jobs:
            raise InvalidRequest("request", f"{name!r} is already being served")
        self._lanes.check_drafter(drafter)
        _check_promises(slo, priority, max_depth)
        most = self._limits.max_batch + self._limits.max_waiting
        if len(self._jobs) >= most and not internal:
            raise Overloaded(
                f"{len(self._jobs)} requests run and wait, the most that limits.max_batch and "
                "limits.max_waiting allow; try again later"
            )
        served = admit(name, prompt, params, self._target, output=output, attempt=attempt)
        now = self._loop.time()
        view = RequestView(
            name=name,
            arrival_s=now,
            prompt_len=served.prompt_len,
            max_tokens=params.max_tokens,
            slo=slo,
            priority=priority,
            tenant=tenant,
            generated=served.produced,
        )
        statistics = Statistics()
        stream = Stream(name, statistics, lambda: self._cancel(job), lambda: self._hear(name))
        stream.acknowledge(len(output))
        job = self._jobs[name] = RequestState(
            served,
            view,
            stream,
            internal=internal,
            speculate=speculate and not internal,
            max_depth=max_depth,
            drafter=drafter,
            pending=len(served.committed),
            since_s=now,
            covered=[False] * served.produced,
            statistics=statistics,
        )
        if not internal:
            self._policies.schedule.arrive(view, now)
            self._observe(Arrived(now, view, tuple(prompt)))
        self._wake()
        return stream

    def cancel(self, name: str) -> None:
        """Unknown requests are no error: they may have just finished."""
        job = self._jobs.get(name)
        if job is not None:
            self._cancel(job)

    def acknowledge(self, name: str, tokens: int) -> None:
        """`tokens` of the output have reached the client. Unknown requests are no error."""
        job = self._jobs.get(name)
        if job is not None:
            job.stream.acknowledge(tokens)

    async def check_hosts(self) -> None:
        """Finds lost hosts among the idle ones, which are then brought back. Call it now and
        then: a host at work shows by itself that it lives."""
        await asyncio.gather(self._verifying.check(), self._lanes.check())

    async def kv_state(self) -> KvState:
        """Raises HostLost while there is no verifier."""
        return await self._verifying.kv_state()

    def predict(self, name: str, output_tokens: float) -> None:
        """A length predictor has spoken."""
        if name in self._jobs:
            self._jobs[name].view.predicted_len = output_tokens
            self._wake()

    def use(self, policies: Policies, pipeline: MicroBatchParams) -> None:
        """From the next pass on; new policies get to know the requests that are there."""
        now = self._loop.time()
        if policies.schedule is not self._policies.schedule:
            for job in self._jobs.values():
                if not job.internal:
                    policies.schedule.arrive(job.view, now)
        self._policies = policies
        self._microbatches.use(pipeline)
        self._wake()

    async def close(self) -> None:
        """Ends all streams. The hosts are their owner's to close (actors/hosts/fleet.py)."""
        self._end(Cancelled("the coordinator is closing"))
        await self._tasks.end()

    def _hear(self, name: str) -> None:
        """Its reader has come nearer."""
        if name in self._stalls:
            self._wake()

    def _wake(self) -> None:
        """Something has changed: one pass for all that changes until the loop's next turn."""
        if not self._pass_is_due:
            self._pass_is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._pass_is_due = False
        if self._failure is not None:
            return
        try:
            self._pass(self._loop.time())
        except Exception as error:
            self._stop(error)
        if self._gone:
            gone, self._gone = self._gone, []
            self._tasks.spawn(self._forget, gone)

    def _pass(self, now: float) -> None:
        for job in [job for job in self._running.values() if job.ends and not job.with_host]:
            self._leave(job, now)
        self._choose_who_runs(now)
        running = list(self._running.values())
        cutting = self._microbatches.cutting(running)
        if cutting.barrier:
            _form_cohorts(running, cutting.cohorts)
        self._drafting.start(running, self._policies, cutting, now)
        if self._verifying.start(running, self._policies, cutting, now):
            self._reading.start(running, self._policies, now)

    def _choose_who_runs(self, now: float) -> None:
        """Gives out batch slots and KV in the schedule's order. A request on its way through a
        round keeps what it has; one between rounds that is not reached is preempted."""
        between = [job for job in self._running.values() if job.stage is READY]
        some_wait = len(self._jobs) > len(self._running)
        if not between and not some_wait:
            return
        within = [job for job in self._running.values() if job.stage is not READY]
        if any(job.cramped for job in between):
            # The KV holds less than was thought: what the others need is all there is.
            others = [*within, *(job for job in between if not job.cramped)]
            self._kv_room = sum(map(_kv_need, others))
        slots = self._limits.max_batch - len(within)
        room = self._kv_room - sum(map(_kv_need, within))
        paused = self._paused(between)
        all_fit = sum(map(_kv_need, between)) <= room
        if not paused and (slots == 0 or (all_fit and not some_wait)):
            return
        kept: list[RequestState] = []
        for job in self._in_order(now):
            if job.in_flight or job.name in paused:
                continue
            # Alone any request fits: limits.kv_tokens is at least a whole context.
            if len(kept) == slots or (_kv_need(job) > room and (kept or within)):
                break
            kept.append(job)
            room -= _kv_need(job)
        names = {job.name for job in kept}
        for job in between:
            if job.name not in names:
                self._preempt(job, now)
        for job in kept:
            if job.stage is WAITING:
                job.stage = READY
                job.since_s = now
                if job.statistics.queue_s is None:
                    job.statistics.queue_s = now - job.view.arrival_s
                self._running[job.name] = job

    def _paused(self, between: Sequence[RequestState]) -> set[str]:
        """Requests too far ahead of their readers; in the end they are cancelled."""
        most = self._limits.unread_tokens
        for job in between:
            if job.stream.unread_tokens > most and job.name not in self._stalls:
                timer = self._loop.call_later(self._limits.stalled_s, self.cancel, job.name)
                self._stalls[job.name] = timer
        for name in list(self._stalls):
            if self._jobs[name].stream.unread_tokens <= most:
                self._unstall(name)
        return set(self._stalls)

    def _in_order(self, now: float) -> list[RequestState]:
        """The system's own requests, then users' as the schedule prefers them."""
        internal = [job for job in self._jobs.values() if job.internal]
        users = [job for job in self._jobs.values() if not job.internal]
        if not users:
            return internal
        names = self._policies.schedule.pick(
            [job.view for job in users],
            [name for name, job in self._running.items() if not job.internal],
            self._limits.max_batch,
            now,
        )
        return [*internal, *(self._jobs[name] for name in names)]

    def _preempt(self, job: RequestState, now: float) -> None:
        """Its KV stays until the verifier needs the room, then moves to host memory or goes."""
        job.stage = WAITING
        job.cohort = -1
        del self._running[job.name]
        self._observe(Preempted(now, job.name))

    def _cancel(self, job: RequestState) -> None:
        if self._jobs.get(job.name) is not job:
            return
        job.ends = True
        if job.stage is WAITING:
            self._leave(job, self._loop.time())
        self._wake()

    def _leave(self, job: RequestState, now: float) -> None:
        """Finished or cancelled: nothing of it stays anywhere."""
        if job.failed:
            job.stream.fail(RequestFailed(job.name))
        elif job.finish is None:
            job.stream.fail(Cancelled(f"request {job.name!r} was cancelled"))
        job.stage = GONE
        del self._jobs[job.name]
        self._running.pop(job.name, None)
        self._unstall(job.name)
        self._kv_room = self._limits.kv_tokens
        if not job.internal:
            policies = self._policies
            for policy in (policies.schedule, policies.selection, policies.speculation):
                policy.forget(job.name)
        self._gone.append(job.name)
        left = Left(now, job.view, job.finish, job.statistics, job.internal, job.failed)
        self._observe(left)

    async def _forget(self, requests: Sequence[str]) -> None:
        await asyncio.gather(self._verifying.forget(requests), self._lanes.forget(requests))

    def _unstall(self, name: str) -> None:
        timer = self._stalls.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _stop(self, error: Exception) -> None:
        """A failure here is a defect of ours or of a host: nothing may wait for it in silence.
        Readers in this process hear which; clients do not (deployments/replica/deployment.py)."""
        _LOG.error("the coordinator stops", exc_info=error)
        self._end(SpindleError(f"the coordinator stopped: {error!r}"))

    def _end(self, failure: SpindleError) -> None:
        if self._failure is None:
            self._failure = failure
            for job in self._jobs.values():
                job.stream.fail(failure)
            self._jobs.clear()


def _check_promises(slo: Slo, priority: int, max_depth: int | None) -> None:
    check_number("slo.ttft_s", slo.ttft_s, ranges.SLO_S)
    check_number("slo.tpot_s", slo.tpot_s, ranges.SLO_S)
    check_integer("priority", priority, ranges.PRIORITY)
    check_integer("speculation.max_depth", max_depth, ranges.SOME)


def _form_cohorts(running: Sequence[RequestState], count: int) -> None:
    """Micro-batches of equal size; a request changes over only between its rounds."""
    if count == 1:
        for job in running:
            job.cohort = 0
        return
    size = -(-len(running) // count)
    members = [0] * count
    moving = []
    for job in running:
        settled = 0 <= job.cohort < count and members[job.cohort] < size
        if job.stage is READY and not settled:
            moving.append(job)
        else:
            job.cohort = min(max(job.cohort, 0), count - 1)
            members[job.cohort] += 1
    for job in moving:
        job.cohort = members.index(min(members))
        members[job.cohort] += 1


def _kv_need(job: RequestState) -> int:
    return -(-job.view.context // _KV_BLOCK) * _KV_BLOCK + _KV_BLOCK
