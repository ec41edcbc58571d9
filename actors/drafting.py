"""The drafting side of a round: lanes draft for ready requests, and catch up when idle."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from actors.events import CaughtUp, Drafted, Event, LaneDown, LaneUp, Switched
from actors.hosts import DrafterHost, HostLost
from actors.jobs import DRAFTED, DRAFTING, READY, VERIFYING, Job
from actors.knowledge import Batch, Knowledge
from actors.pipelining import Batches, Cutting, verified_together, waiting_with
from actors.settings import Lane, Limits, Policies
from engine.errors import InvalidRequest
from engine.protocol import Draft, DraftOrder, Missing, NoRoom
from policies.protocols import Ask, DraftLimit, Selection, StepRule
from policies.request import LaneView
from policies.tree import DraftTree

Answer = Draft | Missing | NoRoom
_WORTH_READING = 8
"""Committed tokens for which an idle lane is asked to catch up: fewer can be read when the request
comes, and every round of every request would cost an order."""
_READING_SHARE = 0.005
"""Of the time, for reading ahead on lanes that share processors with the verifier: there it is
no idle time and slows the forward down, so it is done for what it teaches only."""
_SAVED_READING_S = 0.1
"""So much of it can be saved up, and owed."""


@dataclass(slots=True)
class _LaneState:
    lane: Lane
    busy: bool = False
    down: bool = False

    @property
    def name(self) -> str:
        return self.lane.view.name

    @property
    def idle(self) -> bool:
        return not (self.busy or self.down)


class Drafting:
    def __init__(
        self,
        lanes: Sequence[Lane],
        limits: Limits,
        knowledge: Knowledge,
        observe: Callable[[Event], None],
        spawn: Callable[[Coroutine[None, None, None]], None],
        changed: Callable[[], None],
    ) -> None:
        self._lanes = {lane.view.name: _LaneState(lane) for lane in lanes}
        self._limits = limits
        self._knowledge = knowledge
        self._observe = observe
        self._spawn = spawn
        self._changed = changed
        self._reading_s = 0.0
        self._saved_at_s = 0.0

    @property
    def lanes(self) -> list[Lane]:
        return [state.lane for state in self._lanes.values()]

    def check_drafter(self, name: str | None) -> None:
        """Raises InvalidRequest for a drafter that no lane has."""
        known = dict.fromkeys(state.lane.view.drafter for state in self._lanes.values())
        if name is not None and name not in known:
            there_are = f"there are {', '.join(known)}" if known else "there are none"
            raise InvalidRequest("speculation.drafter", f"there is no {name!r}; {there_are}")

    def views(self) -> list[LaneView]:
        """The lanes that a request may be put on."""
        return [
            state.lane.view
            for state in self._lanes.values()
            if not state.down and not state.lane.free
        ]

    def start(
        self, running: Sequence[Job], policies: Policies, cutting: Cutting, now: float
    ) -> None:
        """Gives every ready request to its lane, or straight to the verifier."""
        ready = [job for job in running if job.stage is READY]
        drafting: list[Job] = []
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
        self, running: Sequence[Job], selection: Selection, now: float
    ) -> Mapping[str, str | None]:
        """A lane for each request, or None. Who has named a drafter takes a place on its lanes;
        the selection gives out the rest."""
        pinned = [job for job in running if job.drafter is not None]
        users = [job.view for job in running if not job.internal and job.drafter is None]
        lanes = self.views()
        if not pinned:
            return selection.assign(users, lanes, now)
        free = {lane.name: lane.capacity for lane in lanes}
        chosen: dict[str, str | None] = {}
        for job in pinned:
            own = [lane.name for lane in lanes if lane.drafter == job.drafter and free[lane.name]]
            # Where it is now, if it can be: another lane would have to catch up.
            lane = max(own, key=lambda name: (name == job.lane, free[name]), default=None)
            chosen[job.name] = lane
            if lane is not None:
                free[lane] -= 1
        left = [replace(lane, capacity=free[lane.name]) for lane in lanes if free[lane.name]]
        return {**selection.assign(users, left, now), **chosen}

    def _batches(
        self,
        drafting: Sequence[Job],
        chosen: Mapping[str, str | None],
        cutting: Cutting,
    ) -> dict[str | None, list[Job]]:
        """What can start now: at most one micro-batch for each idle lane."""
        batches: dict[str | None, list[Job]] = {}
        members = Counter(chosen.values())
        idle = {None, *(name for name, state in self._lanes.items() if state.idle)}
        barrier = cutting.barrier
        for job in drafting:
            lane = chosen.get(job.name)
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
        self, batches: Batches, others: Sequence[Job], policies: Policies, now: float
    ) -> None:
        """Asks the chosen lanes and every free one; no depth anywhere is plain decoding.
        `others` wait for the same verification."""
        jobs = [job for batch in batches.values() for job in batch]
        able = {lane: batch for lane, batch in batches.items() if lane is not None}
        for name, state in self._lanes.items():
            if state.lane.free and state.idle:
                drafter = state.lane.view.drafter
                may = [job for job in jobs if job.drafter in (None, drafter)]
                if may:
                    able[name] = may
        if able:
            asked = {job.name for batch in able.values() for job in batch}
            waiting = [job for job in (*jobs, *others) if job.name not in asked]
            self._ask_for_drafts(able, waiting, policies, now)
        for job in jobs:
            if job.stage is not DRAFTING:
                job.propose_nothing()

    def _ask_for_drafts(
        self,
        able: Mapping[str, Sequence[Job]],
        waiting: Sequence[Job],
        policies: Policies,
        now: float,
    ) -> None:
        asks = [
            Ask(
                lane,
                [job.view for job in batch],
                [len(job.served.committed) - job.served.known.get(lane, 0) for job in batch],
            )
            for lane, batch in able.items()
        ]
        asks.append(Ask(None, [job.view for job in waiting]))
        context = self._knowledge.context()
        plans = policies.speculation.plan(asks, context, now)
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
            call.state.busy = not call.state.lane.free
            for job, _ in call.asked:
                if job.stage is not DRAFTING:
                    job.propose_nothing()
                    job.tried = True
                    job.stage = DRAFTING
                if not call.state.lane.free:
                    self._put_on(job, call.state.name, now)
        if calls:
            self._spawn(self._draft(calls))

    def _put_on(self, job: Job, lane: str, now: float) -> None:
        job.asked = lane
        job.caught_up = 0
        if job.lane != lane:
            job.caught_up = len(job.served.committed) - job.served.known.get(lane, 0)
            if job.lane is not None:
                self._observe(Switched(now, job.name, job.lane, lane, job.caught_up))
            job.lane = lane

    async def _draft(self, calls: Sequence["_Call"]) -> None:
        """All lanes' trees of each request become one (DESIGN 4.8), or one chain."""
        if len(calls) == 1:
            answers = [await self._ask(calls[0])]
        else:
            answers = await asyncio.gather(*(self._ask(call) for call in calls))
        # Lookups are too short to tell from the handling around them.
        priced = (call.seconds for call in calls if not call.state.lane.free)
        seconds = max(priced, default=0.0)
        jobs: dict[str, Job] = {}
        for call, trees in zip(calls, answers, strict=True):
            lane = call.state.name
            for (job, _), tree in zip(call.asked, trees, strict=True):
                jobs[job.name] = job
                if len(tree.tokens):
                    job.proposals.append((lane, tree))
        united = self._knowledge.united([job.proposals for job in jobs.values()])
        for job, (tree, sources) in zip(jobs.values(), united, strict=True):
            job.tree, job.sources = tree, sources
            job.depth = max(tree.depth.tolist(), default=0)
            job.draft_s = seconds
            job.stage = DRAFTED
        self._changed()

    async def _ask(self, call: "_Call") -> list[DraftTree]:
        """One lane's trees; a lane that gets lost proposes nothing and is brought back."""
        name, clock = call.state.name, asyncio.get_running_loop().time
        orders = [
            DraftOrder(job.served.prefix_for(name), limit.depth, limit.width)
            for job, limit in call.asked
        ]
        begun = clock()
        try:
            answers = await call.state.lane.host.draft(orders, call.rule)
        except HostLost as error:
            self._lose(call.state, error)
            return [DraftTree.empty()] * len(orders)
        call.state.busy = False
        trees = [
            _take(job, name, answer) for (job, _), answer in zip(call.asked, answers, strict=True)
        ]
        call.seconds = clock() - begun
        self._knowledge.learn_draft_cost(name, orders, trees, call.seconds)
        self._observe(Drafted(clock(), name, call.seconds, len(orders), sum(map(len, trees))))
        return trees

    def _lose(self, state: _LaneState, error: HostLost) -> None:
        state.busy = False
        if state.down:
            return  # a check has found it out already
        state.down = True
        self._observe(LaneDown(asyncio.get_running_loop().time(), state.name, str(error)))
        self._spawn(self._recover(state))

    async def _recover(self, state: _LaneState) -> None:
        """The new host knows nothing: it answers Missing and gets the whole."""
        clock = asyncio.get_running_loop().time
        lost_s = clock()
        await state.lane.host.recover()
        state.down = False
        self._observe(LaneUp(clock(), state.name, clock() - lost_s))
        self._changed()

    def catch_up(self, running: Sequence[Job], policies: Policies, now: float) -> None:
        """Fast switching (Spin IV-C): while the verifier works, lanes with nothing to do read
        what the requests that will probably come to them have committed."""
        self._save_reading_time(now)
        idle = {state.name for state in self._lanes.values() if self._may_read(state)}
        if not idle:
            return
        verified = [job.view.context for job in running if job.stage is VERIFYING]
        forward = Batch(len(verified), sum(verified))
        pieces: dict[str, list[tuple[Job, DraftOrder]]] = {}
        left = dict.fromkeys(idle, self._limits.catch_up_tokens)
        for job in running:
            # Also for who decodes plainly: else nobody would learn that it could do better.
            if job.stage is not VERIFYING or job.draft_room <= 0:
                continue
            behind = _behind(job, idle)
            if job.drafter is not None or not behind:
                continue
            lane = policies.selection.likely_next(job.name)
            if lane in behind and left[lane] > 0:
                # At most limits.catch_up_tokens, so that no micro-batch waits long behind them.
                prefix = job.served.prefix_for(lane, at_most=left[lane])
                pieces.setdefault(lane, []).append((job, DraftOrder(prefix, depth=0, score=True)))
                left[lane] -= len(prefix.delta)
        for lane, batch in pieces.items():
            self._lanes[lane].busy = True
            self._spawn(self._read_ahead(self._lanes[lane], batch, forward, policies))

    def _save_reading_time(self, now: float) -> None:
        saved_s = self._reading_s + _READING_SHARE * (now - self._saved_at_s)
        self._reading_s, self._saved_at_s = min(saved_s, _SAVED_READING_S), now

    def _may_read(self, state: _LaneState) -> bool:
        lane = state.lane
        return state.idle and not lane.free and (lane.apart or self._reading_s > 0.0)

    async def _read_ahead(
        self,
        state: _LaneState,
        pieces: Sequence[tuple[Job, DraftOrder]],
        forward: Batch,
        policies: Policies,
    ) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            answers = await state.lane.host.draft([order for _, order in pieces], None)
        except HostLost as error:
            self._lose(state, error)
            return
        state.busy = False
        now = asyncio.get_running_loop().time()
        if not state.lane.apart:
            # A first one compiles for seconds: that shall not be the last for minutes.
            self._reading_s = max(self._reading_s - (now - begun), -_SAVED_READING_S)
        for (job, order), answer in zip(pieces, answers, strict=True):
            _take(job, state.name, answer, upto=order.prefix.base + len(order.prefix.delta))
            if isinstance(answer, Draft) and answer.matched and not job.ends:
                end = order.prefix.base + len(order.prefix.delta) - job.served.prompt_len
                covered = job.covered[end - len(answer.matched) : end]
                view, context = state.lane.view, job.view.context
                score = self._knowledge.score(view, context, answer.matched, covered, forward)
                policies.selection.observe_score(
                    job.name, state.name, score.tokens, score.seconds, score.rounds
                )
                policies.speculation.observe_read(job.name, state.name, answer.matched, covered)
        tokens = sum(len(order.prefix.delta) for _, order in pieces)
        self._observe(CaughtUp(now, state.name, now - begun, tokens))
        self._changed()

    async def check(self) -> None:
        """Finds out which idle lanes are lost before a request does."""
        await asyncio.gather(*(self._check(state) for state in self._lanes.values() if state.idle))

    async def _check(self, state: _LaneState) -> None:
        try:
            await state.lane.host.forget(())
        except HostLost as error:
            self._lose(state, error)

    async def forget(self, requests: Sequence[str]) -> None:
        await asyncio.gather(
            *(self._forget_at(state.lane.host, requests) for state in self._lanes.values())
        )

    async def _forget_at(self, host: DrafterHost, requests: Sequence[str]) -> None:
        """Whoever is lost has forgotten everything; the next order finds that out."""
        with suppress(HostLost):
            await host.forget(requests)


@dataclass(slots=True)
class _Call:
    """What one lane is asked for in one micro-batch."""

    state: _LaneState
    asked: Sequence[tuple[Job, DraftLimit]]
    rule: StepRule | None
    seconds: float = 0.0
    """Until it answered."""


def _behind(job: Job, lanes: Iterable[str]) -> list[str]:
    """Those that lack so much of the request that it is worth an order."""
    known, enough = job.served.known, len(job.served.committed.ids) - _WORTH_READING
    return [lane for lane in lanes if known.get(lane, 0) <= enough]


def _within(limit: DraftLimit, room: int, trees: bool) -> DraftLimit:
    if limit.depth <= room and (trees or limit.width == 1):
        return limit
    return DraftLimit(min(limit.depth, room), limit.width if trees else 1)


def _take(job: Job, lane: str, answer: Answer, upto: int | None = None) -> DraftTree:
    """Notes what the lane has now; its tree, where it gave one."""
    if isinstance(answer, Draft):
        job.served.known[lane] = len(job.served.committed) if upto is None else upto
        return answer.tree
    job.served.known[lane] = answer.have if isinstance(answer, Missing) else 0
    return DraftTree.empty()
