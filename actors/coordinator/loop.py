"""The round loop: schedule, draft, select, verify, commit (docs/architecture.md).

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
from actors.coordinator.batch_slots import BatchSlots
from actors.coordinator.catch_up import CatchUp
from actors.coordinator.drafting import Drafting
from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Arrived, Event, Left
from actors.coordinator.feature_readers import FeatureReaders
from actors.coordinator.lanes import Lanes
from actors.coordinator.lessons import Lessons
from actors.coordinator.microbatches import MicroBatches
from actors.coordinator.request_state import GONE, WAITING, RequestState
from actors.coordinator.settings import Lane, Limits, Policies, Shared
from actors.coordinator.stream import Cancelled, Statistics, Stream
from actors.coordinator.verifying import Verifying
from actors.hosts.protocol import VerifierHost
from engine.errors import InvalidRequest, SpindleError
from engine.kv.blocks import KvState
from engine.request import admit
from engine.sampling.params import SamplingParams
from engine.scopes import INTERNAL, SHARED, Scope
from policies.microbatch import MicroBatchParams
from policies.precompile import warm_up
from policies.request import RequestView, Slo

_DEFAULT_LIMITS = Limits()
_DEFAULT_PIPELINE = MicroBatchParams()
_LOG = logging.getLogger("spindle")
_NO_SLO = Slo()


class Coordinator:
    """Create it on the event loop in which it runs. `close` ends it and every stream."""

    def __init__(
        self,
        verifier: VerifierHost,
        lanes: Sequence[Lane],
        policies: Policies,
        estimates: Estimates,
        limits: Limits = _DEFAULT_LIMITS,
        pipeline: MicroBatchParams = _DEFAULT_PIPELINE,
        observe: Callable[[Event], None] = lambda _event: None,
        lessons: Lessons | None = None,
    ) -> None:
        """`lessons`: takes what a drafter learns from."""
        warm_up()
        self._target = verifier.limits
        limits.check_holds(self._target.max_context)
        self._policies = policies
        self._limits = limits
        self._acceptance = estimates.acceptance
        self._observe = observe
        self._lessons = lessons or Lessons((), 0)
        self._loop = asyncio.get_running_loop()
        self._requests: dict[str, RequestState] = {}
        self._slots = BatchSlots(self._requests, limits, observe, self.cancel)
        self._gone: list[str] = []
        """Requests that have left and that the hosts still hold."""
        self._failure: SpindleError | None = None
        self._pass_is_due = False
        self._tasks = Tasks(self._stop)
        shared = Shared(limits, estimates, observe, self._tasks, self._wake, self._lessons)
        self._microbatches = MicroBatches(pipeline, estimates, lanes)
        self._lanes = Lanes(lanes, shared)
        features = FeatureReaders(self._lanes, shared)
        self._drafting = Drafting(self._lanes, features, shared)
        self._catch_up = CatchUp(self._lanes, features, shared)
        self._verifying = Verifying(
            verifier,
            features,
            shared,
            {lane.view.name for lane in lanes if lane.always_drafts},
            {lane.view.name: lane.view.drafter for lane in lanes},
        )

    @property
    def alive(self) -> bool:
        return self._failure is None

    @property
    def lanes_down(self) -> list[str]:
        """The names of lanes that are lost."""
        return self._lanes.down

    def submit(
        self,
        name: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        slo: Slo = _NO_SLO,
        priority: int = 0,
        tenant: str = "",
        scope: Scope = SHARED,
        remember: bool = True,
        output: Sequence[int] = (),
        attempt: int = 0,
        speculate: bool = True,
        max_depth: int | None = None,
        drafter: str | None = None,
        traced: bool = False,
        internal: bool = False,
        may_teach: bool = False,
    ) -> Stream:
        """Raises InvalidRequest naming the field, or Overloaded. `output` and `attempt`: of a
        request that another coordinator has started. `scope`: whose past requests it may use, and
        who may use it later, if `remember`. `drafter`: the only one that may draft for it.
        `traced`: its commits have traces. `internal`: one of the system's own requests.
        `may_teach`: drafters may learn from it."""
        if self._failure is not None:
            raise self._failure
        if name in self._requests:
            raise InvalidRequest("request", f"{name!r} is already being served")
        self._lanes.check_drafter(drafter)
        if not internal:
            self._slots.check_room()
        served = admit(
            name,
            prompt,
            params,
            self._target,
            output=output,
            attempt=attempt,
            scope=INTERNAL if internal else scope,
            remember=remember,
        )
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
            read=served.known,
        )
        statistics = Statistics()
        stream = Stream(
            name,
            statistics,
            on_close=lambda: self._cancel(request),
            on_acknowledge=lambda: self._on_acknowledge(name),
        )
        stream.acknowledge(len(output))
        request = self._requests[name] = RequestState(
            served,
            view,
            stream,
            internal=internal,
            speculate=speculate and not internal,
            max_depth=max_depth,
            drafter=drafter,
            traced=traced,
            may_teach=may_teach and not internal and not params.adapter,
            pending=len(served.committed),
            slot_since_s=now,
            covered=[False] * served.produced,
            statistics=statistics,
        )
        if params.adapter:
            self._acceptance.adapt(name, params.adapter)
        self._lessons.begins(request)
        if not internal:
            self._policies.schedule.arrive(view, now)
            self._observe(Arrived(now, view, tuple(prompt)))
        self._wake()
        return stream

    def cancel(self, name: str) -> None:
        """Unknown requests are no error: they may have just finished."""
        if (request := self._requests.get(name)) is not None:
            self._cancel(request)

    async def check_hosts(self) -> None:
        """Finds lost hosts among the idle ones and recovers them. Call it periodically; the loss of
        a busy host ends the call that it is working on."""
        await asyncio.gather(self._verifying.check(), self._lanes.check())

    async def kv_state(self) -> KvState:
        """Raises HostLost while there is no verifier."""
        return await self._verifying.kv_state()

    def predict(self, name: str, output_tokens: float) -> None:
        """Sets the predicted output length, for schedules. Unknown requests are no error."""
        if name in self._requests:
            self._requests[name].view.predicted_len = output_tokens
            self._wake()

    def use(self, policies: Policies, pipeline: MicroBatchParams) -> None:
        """Applies from the next pass on; a new schedule is passed all present requests."""
        now = self._loop.time()
        if policies.schedule is not self._policies.schedule:
            for request in self._requests.values():
                if not request.internal:
                    policies.schedule.arrive(request.view, now)
        self._policies = policies
        self._microbatches.use(pipeline)
        self._wake()

    async def close(self) -> None:
        """Ends all streams; hosts are closed by their owner (actors/hosts/fleet.py)."""
        self._end(Cancelled("the coordinator is closing"))
        await self._tasks.end()

    def _on_acknowledge(self, name: str) -> None:
        """A paused request may continue when its reader has caught up."""
        if self._slots.is_paused(name):
            self._wake()

    def _wake(self) -> None:
        """Schedules one pass for everything that changes until the event loop's next turn."""
        if not self._pass_is_due:
            self._pass_is_due = True
            self._loop.call_soon(self._run_pass)

    def _run_pass(self) -> None:
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
        for request in self._slots.running:
            if request.ends and not request.with_host:
                self._leave(request, now)
        self._slots.assign(self._policies.schedule, now)
        running = self._slots.running
        self._microbatches.form(running)
        self._drafting.start(running, self._policies, now)
        verifies = self._verifying.start(running, self._policies, now)
        self._catch_up.read_prompts(running)
        if verifies:
            self._catch_up.start(running, self._policies, now)

    def _cancel(self, request: RequestState) -> None:
        if self._requests.get(request.name) is not request:
            return
        request.ends = True
        if request.stage is WAITING:
            self._leave(request, self._loop.time())
        self._wake()

    def _leave(self, request: RequestState, now: float) -> None:
        """Removes a finished, failed or cancelled request from slots, policies and hosts."""
        request.end_stream()
        request.stage = GONE
        del self._requests[request.name]
        self._slots.release(request.name)
        self._acceptance.forget(request.name)
        self._lessons.ends(request)
        if not request.internal:
            self._policies.schedule.forget(request.name)
            self._policies.selection.forget(request.name)
        self._gone.append(request.name)
        left = (now, request.view, request.finish, request.statistics)
        self._observe(Left(*left, request.internal, request.failed))

    async def _forget(self, requests: Sequence[str]) -> None:
        await asyncio.gather(self._verifying.forget(requests), self._lanes.forget(requests))

    def _stop(self, error: Exception) -> None:
        """Ends all streams after a defect here or in a host, so that no reader waits for ever. The
        error names it; clients are not sent it (deployments/replica/deployment.py)."""
        _LOG.error("the coordinator stops", exc_info=error)
        self._end(SpindleError(f"the coordinator stopped: {error!r}"))

    def _end(self, failure: SpindleError) -> None:
        if self._failure is None:
            self._failure = failure
            for request in self._requests.values():
                request.stream.fail(failure)
            self._requests.clear()
