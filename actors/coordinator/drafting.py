"""The drafting side of a round: lanes draft for ready requests."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from actors.coordinator.background_tasks import Tasks
from actors.coordinator.estimates import Estimates
from actors.coordinator.events import Drafted, Event, Switched
from actors.coordinator.lanes import Lanes, LaneState, take_answer
from actors.coordinator.microbatches import Batches, Cutting, verified_together, waiting_with
from actors.coordinator.request_state import DRAFTED, DRAFTING, READY, RequestState
from actors.coordinator.settings import Policies
from actors.hosts.protocol import HostLost
from engine.protocol import DraftOrder, new
from policies.flat_trees import NO_TREES, FlatTrees, flatten
from policies.protocols import DraftLimit, LaneBatch, Selection, StepRule
from policies.tree import DraftTree


class Drafting:
    def __init__(
        self,
        lanes: Lanes,
        estimates: Estimates,
        observe: Callable[[Event], None],
        tasks: Tasks,
        changed: Callable[[], None],
    ) -> None:
        self._lanes = lanes
        self._estimates = estimates
        self._observe = observe
        self._tasks = tasks
        self._changed = changed

    def start(
        self, running: Sequence[RequestState], policies: Policies, cutting: Cutting, now: float
    ) -> None:
        """Gives every ready request to its lane, or straight to the verifier."""
        ready = [job for job in running if job.stage is READY]
        drafting: list[RequestState] = []
        for job in ready:
            if job.prefilled and not job.cramped and job.draft_room > 0:
                drafting.append(job)
            else:
                job.propose_nothing()
        if drafting:
            chosen = self._chosen(running, policies.selection, now)
            batches = self._batches(drafting, chosen, cutting)
            for together in verified_together(batches, cutting):
                others = waiting_with(together, running, cutting)
                self._begin(together, others, policies, now)

    def _chosen(
        self, running: Sequence[RequestState], selection: Selection, now: float
    ) -> Mapping[str, str | None]:
        """A lane for each request, or None. Who has named a drafter takes a place on its lanes;
        the selection gives out the rest."""
        pinned = [job for job in running if job.drafter is not None]
        users = [job.view for job in running if not job.internal and job.drafter is None]
        lanes = self._lanes.views()
        if not pinned:
            return selection.assign(users, lanes, now)
        free = {lane.name: lane.capacity for lane in lanes}
        chosen: dict[str, str | None] = {}
        for job in pinned:
            own = [
                lane.name
                for lane in lanes
                if lane.drafter == job.drafter and free[lane.name] and lane.name not in job.without
            ]
            # Where it is now, if it can be: another lane would have to catch up.
            lane = max(own, key=lambda name: (name == job.lane, free[name]), default=None)
            chosen[job.name] = lane
            if lane is not None:
                free[lane] -= 1
        left = [replace(lane, capacity=free[lane.name]) for lane in lanes if free[lane.name]]
        return {**selection.assign(users, left, now), **chosen}

    def _batches(
        self,
        drafting: Sequence[RequestState],
        chosen: Mapping[str, str | None],
        cutting: Cutting,
    ) -> dict[str | None, list[RequestState]]:
        """What can start now: at most one micro-batch for each idle lane."""
        batches: dict[str | None, list[RequestState]] = {}
        members = Counter(chosen.values())
        idle = {None, *(state.name for state in self._lanes if state.idle)}
        barrier = cutting.barrier
        for job in drafting:
            lane = chosen.get(job.name)
            if lane in job.without:
                lane = None
            if lane not in idle:
                continue
            batch = batches.setdefault(lane, [])
            if barrier:
                fits = not batch or batch[0].cohort == job.cohort
            else:
                fits = len(batch) * cutting.parts.get(lane, 1) < members[lane]
            if lane is None or fits:
                batch.append(job)
        return batches

    def _begin(
        self, batches: Batches, others: Sequence[RequestState], policies: Policies, now: float
    ) -> None:
        """Asks the chosen lanes and every free one; no depth anywhere is plain decoding.
        `others` wait for the same verification."""
        jobs = [job for batch in batches.values() for job in batch]
        able = {lane: batch for lane, batch in batches.items() if lane is not None}
        for state in self._lanes:
            if state.lane.free and state.idle:
                drafter = state.lane.view.drafter
                may = [
                    job
                    for job in jobs
                    if job.drafter in (None, drafter) and state.name not in job.without
                ]
                if may:
                    able[state.name] = may
        if able:
            asked = {job.name for batch in able.values() for job in batch}
            waiting = [job for job in (*jobs, *others) if job.name not in asked]
            self._ask_for_drafts(able, waiting, policies, now)
        for job in jobs:
            if job.stage is not DRAFTING:
                job.propose_nothing()

    def _ask_for_drafts(
        self,
        able: Mapping[str, Sequence[RequestState]],
        waiting: Sequence[RequestState],
        policies: Policies,
        now: float,
    ) -> None:
        batches = [
            LaneBatch(
                lane,
                [job.view for job in batch],
                [len(job.served.committed.ids) - job.served.known.get(lane, 0) for job in batch],
            )
            for lane, batch in able.items()
        ]
        batches.append(LaneBatch(None, [job.view for job in waiting]))
        context = self._estimates.context()
        plans = policies.speculation.plan(batches, context, now)
        calls = []
        for (lane, batch), plan in zip(able.items(), plans, strict=False):
            asked = [
                (job, _within(limit, job.draft_room, context.trees))
                for job, limit in zip(batch, plan.limits, strict=True)
                if limit.depth > 0
            ]
            if asked:
                calls.append(_Call(self._lanes[lane], asked, plan.rule))
        for call in calls:
            lane, free = call.state.name, call.state.lane.free
            call.state.busy = not free
            for job, _ in call.asked:
                if job.stage is not DRAFTING:
                    job.propose_nothing()
                    job.tried = True
                    job.stage = DRAFTING
                if not free:
                    self._put_on(job, lane, now)
        for call in calls:
            self._tasks.spawn(self._ask, call, calls)

    def _put_on(self, job: RequestState, lane: str, now: float) -> None:
        job.asked = lane
        job.caught_up = 0
        if job.lane != lane:
            job.caught_up = len(job.served.committed) - job.served.known.get(lane, 0)
            if job.lane is not None:
                self._observe(Switched(now, job.name, job.lane, lane, job.caught_up))
            job.lane = lane

    def _unite(self, calls: Sequence["_Call"]) -> None:
        """All lanes' trees of each request become one (DESIGN 4.8), or one chain."""
        # Lookups are too short to tell from the handling around them.
        priced = (call.seconds for call in calls if not call.state.lane.free)
        seconds = max(priced, default=0.0)
        jobs: dict[str, RequestState] = {}
        for call in calls:
            lane, trees = call.state.name, call.trees or NO_TREES
            sizes = trees.sizes.tolist()
            for place, ((job, _), nodes) in enumerate(zip(call.asked, sizes, strict=True)):
                jobs[job.name] = job
                if nodes:
                    job.proposals.append((lane, trees, place))
                    job.proposers.append(lane)
        self._estimates.unite(jobs.values())
        for job in jobs.values():
            job.draft_s = seconds
            job.stage = DRAFTED
        self._changed()

    async def _ask(self, call: "_Call", calls: Sequence["_Call"]) -> None:
        """One lane's trees; whoever of all `calls` is the last to answer has them united."""
        call.trees = await self._answer(call)
        if all([other.trees is not None for other in calls]):
            self._unite(calls)

    async def _answer(self, call: "_Call") -> FlatTrees:
        """A lane that gets lost proposes nothing and is brought back."""
        name, clock = call.state.name, asyncio.get_running_loop().time
        orders = [
            new(DraftOrder, (job.served.prefix_for(name), limit.depth, limit.width, False))
            for job, limit in call.asked
        ]
        begun = clock()
        try:
            answers = await call.state.lane.host.draft(orders, call.rule)
        except HostLost as error:
            self._lanes.lose(call.state, error)
            return flatten([DraftTree.empty()] * len(orders))
        call.state.busy = False
        trees = flatten(
            [
                take_answer(job, name, answer)
                for (job, _), answer in zip(call.asked, answers, strict=True)
            ]
        )
        call.seconds = clock() - begun
        self._estimates.learn_draft_cost(name, orders, trees, call.seconds)
        self._observe(Drafted(clock(), name, call.seconds, len(orders), len(trees.tokens)))
        return trees


@dataclass(slots=True)
class _Call:
    """What one lane is asked for in one micro-batch."""

    state: LaneState
    asked: Sequence[tuple[RequestState, DraftLimit]]
    rule: StepRule | None
    seconds: float = 0.0
    """Until it answered."""
    trees: FlatTrees | None = None
    """None: it has not answered yet."""


def _within(limit: DraftLimit, room: int, trees: bool) -> DraftLimit:
    if limit.depth <= room and (trees or limit.width == 1):
        return limit
    return DraftLimit(min(limit.depth, room), limit.width if trees else 1)
