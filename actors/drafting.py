"""The drafting side of a round: lanes draft for ready requests, and catch up when idle."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from actors.events import CaughtUp, Drafted, Event, LaneDown, Switched
from actors.hosts import HostLost
from actors.jobs import Job, Stage
from actors.knowledge import Knowledge
from actors.pipelining import Cutting
from actors.settings import Lane, Limits, Policies
from engine.protocol import Draft, DraftOrder, Missing, NoRoom
from policies.protocols import DraftLimit, Selection, StepRule
from policies.request import LaneView
from policies.tree import DraftTree

Answer = Draft | Missing | NoRoom
_WORTH_READING = 8
"""Committed tokens for which an idle lane is asked to catch up: fewer can be read when the request
comes, and every round of every request would cost an order."""


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

    @property
    def lanes(self) -> list[Lane]:
        return [state.lane for state in self._lanes.values()]

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
        ready = [job for job in running if job.stage is Stage.READY]
        drafting: list[Job] = []
        for job in ready:
            if job.prefilled and not job.cramped and job.draft_room > 0:
                drafting.append(job)
            else:
                job.propose_nothing()
        if drafting:
            users = [job.view for job in running if not job.internal]
            chosen = policies.selection.assign(users, self.views(), now)
            for lane, batch in self._batches(drafting, chosen, cutting).items():
                self._begin(lane, batch, policies, now)

    def _batches(
        self,
        drafting: Sequence[Job],
        chosen: Mapping[str, str | None],
        cutting: Cutting,
    ) -> dict[str | None, list[Job]]:
        """What can start now: at most one micro-batch for each idle lane."""
        batches: dict[str | None, list[Job]] = {}
        members = Counter(chosen.values())
        for job in drafting:
            lane = chosen.get(job.name)
            if lane is not None and not self._lanes[lane].idle:
                continue
            batch = batches.setdefault(lane, [])
            if cutting.barrier:
                fits = not batch or batch[0].cohort == job.cohort
            else:
                fits = len(batch) * cutting.parts.get(lane, 1) < members[lane]
            if lane is None or fits:
                batch.append(job)
        return batches

    def _begin(
        self, chosen: str | None, jobs: Sequence[Job], policies: Policies, now: float
    ) -> None:
        """Asks the chosen lane and every free one; no depth anywhere is plain decoding."""
        names = [name for name, state in self._lanes.items() if state.lane.free and state.idle]
        if chosen is not None:
            names.append(chosen)
        context = self._knowledge.context()
        views = [job.view for job in jobs]
        calls = []
        for name in names:
            plan = policies.speculation.plan(views, name, context, now)
            asked = [
                (job, DraftLimit(min(limit.depth, job.draft_room), limit.width))
                for job, limit in zip(jobs, plan.limits, strict=True)
                if limit.depth > 0
            ]
            if asked:
                calls.append(_Call(self._lanes[name], asked, plan.rule))
        for job in jobs:
            job.propose_nothing()
        for call in calls:
            call.state.busy = not call.state.lane.free
            for job, _ in call.asked:
                job.stage = Stage.DRAFTING
                if call.state.name == chosen:
                    self._put_on(job, chosen, now)
        if calls:
            self._spawn(self._draft(calls, now))

    def _put_on(self, job: Job, lane: str, now: float) -> None:
        job.caught_up = 0
        if job.lane != lane:
            job.caught_up = len(job.served.committed) - job.served.known.get(lane, 0)
            if job.lane is not None:
                self._observe(Switched(now, job.name, job.lane, lane, job.caught_up))
            job.lane = lane

    async def _draft(self, calls: Sequence["_Call"], begun: float) -> None:
        """All lanes' trees of each request become one (DESIGN 4.8)."""
        if len(calls) == 1:
            answers = [await self._ask(calls[0])]
        else:
            answers = await asyncio.gather(*(self._ask(call) for call in calls))
        seconds = asyncio.get_running_loop().time() - begun
        jobs: dict[str, Job] = {}
        for call, trees in zip(calls, answers, strict=True):
            for (job, _), tree in zip(call.asked, trees, strict=True):
                jobs[job.name] = job
                if len(tree):
                    job.proposals.append((call.state.name, tree))
        united = self._knowledge.united([job.proposals for job in jobs.values()])
        for job, tree in zip(jobs.values(), united, strict=True):
            job.tree = tree
            job.depth = int(tree.depth.max()) if len(tree) else 0
            job.draft_s = seconds
            job.stage = Stage.DRAFTED
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
        seconds = clock() - begun
        self._knowledge.learn_draft_cost(name, orders, trees, seconds)
        self._observe(Drafted(clock(), name, seconds, len(orders), sum(map(len, trees))))
        return trees

    def _lose(self, state: _LaneState, error: HostLost) -> None:
        state.down, state.busy = True, False
        self._observe(LaneDown(asyncio.get_running_loop().time(), state.name, str(error)))
        self._spawn(self._recover(state))

    async def _recover(self, state: _LaneState) -> None:
        """The new host knows nothing: it answers Missing and gets the whole."""
        await state.lane.host.recover()
        state.down = False
        self._changed()

    def catch_up(self, running: Sequence[Job], policies: Policies) -> None:
        """Fast switching (Spin IV-C): while the verifier works, lanes with nothing to do read
        what the requests that will probably come to them have committed."""
        idle = {state.name for state in self._lanes.values() if state.idle and not state.lane.free}
        if len(self._lanes) < 2 or not idle:
            return
        pieces: dict[str, list[tuple[Job, DraftOrder]]] = {}
        left = dict.fromkeys(idle, self._limits.catch_up_tokens)
        for job in running:
            # Who has never been drafted for (speculation is off, or does not pay) stays alone.
            if job.stage is not Stage.VERIFYING or job.lane is None or job.draft_room <= 0:
                continue
            lane = policies.selection.likely_next(job.name)
            if lane is None or lane == job.lane or left.get(lane, 0) <= 0:
                continue
            behind = len(job.served.committed) - job.served.known.get(lane, 0)
            if behind >= _WORTH_READING:
                # At most limits.catch_up_tokens, so that no micro-batch waits long behind them.
                prefix = job.served.prefix_for(lane, at_most=left[lane])
                pieces.setdefault(lane, []).append((job, DraftOrder(prefix, depth=0, score=True)))
                left[lane] -= len(prefix.delta)
        for lane, batch in pieces.items():
            self._lanes[lane].busy = True
            self._spawn(self._read_ahead(self._lanes[lane], batch, policies.selection))

    async def _read_ahead(
        self,
        state: _LaneState,
        pieces: Sequence[tuple[Job, DraftOrder]],
        selection: Selection,
    ) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            answers = await state.lane.host.draft([order for _, order in pieces], None)
        except HostLost as error:
            self._lose(state, error)
            return
        state.busy = False
        now = asyncio.get_running_loop().time()
        for (job, order), answer in zip(pieces, answers, strict=True):
            _take(job, state.name, answer, upto=order.prefix.base + len(order.prefix.delta))
            if isinstance(answer, Draft) and answer.matched and not job.ends:
                score = self._knowledge.score(state.lane.view, job.view.context, answer.matched)
                selection.observe_score(job.name, state.name, score.tokens, score.seconds)
        tokens = sum(len(order.prefix.delta) for _, order in pieces)
        self._observe(CaughtUp(now, state.name, now - begun, tokens))
        self._changed()

    async def forget(self, requests: Sequence[str]) -> None:
        for state in self._lanes.values():
            if not state.down:
                try:
                    await state.lane.host.forget(requests)
                except HostLost as error:
                    self._lose(state, error)


@dataclass(frozen=True, slots=True)
class _Call:
    """What one lane is asked for in one micro-batch."""

    state: _LaneState
    asked: Sequence[tuple[Job, DraftLimit]]
    rule: StepRule | None


def _take(job: Job, lane: str, answer: Answer, upto: int | None = None) -> DraftTree:
    """Notes what the lane has now; its tree, where it gave one."""
    if isinstance(answer, Draft):
        job.served.known[lane] = len(job.served.committed) if upto is None else upto
        return answer.tree
    job.served.known[lane] = answer.have if isinstance(answer, Missing) else 0
    return DraftTree.empty()
