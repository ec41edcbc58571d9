"""The drafting side of a round: lanes draft for ready requests."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from actors.coordinator.events import Drafted, Switched
from actors.coordinator.feature_readers import FeatureReaders
from actors.coordinator.lanes import Lanes, LaneState, take_answer
from actors.coordinator.microbatches import Batches, verified_together, waiting_for
from actors.coordinator.request_state import DRAFTING, READY, RequestState, first_tokens
from actors.coordinator.round_draft import NO_DRAFT, Proposal, RoundDraft
from actors.coordinator.settings import Policies, Shared
from engine.protocol import Draft, DraftOrder, fast_new
from policies.flat_trees import FlatTrees, flatten
from policies.protocols import DraftLimit, LaneBatch, RoundContext, StepRule
from policies.tree import DraftTree


class Drafting:
    def __init__(self, lanes: Lanes, features: FeatureReaders, shared: Shared) -> None:
        self._lanes = lanes
        self._features = features
        self._shared = shared
        self._estimates = shared.estimates

    def start(self, running: Sequence[RequestState], policies: Policies, now: float) -> None:
        """Sends every ready request to its lane, or straight to the verifier."""
        ready = [request for request in running if request.stage is READY]
        draftable: list[RequestState] = []
        for request in ready:
            if request.prefilled and not request.lacks_kv and request.draft_room > 0:
                draftable.append(request)
            else:
                request.set_draft(NO_DRAFT)
        if draftable:
            context = self._estimates.context(
                active=len(running), first_tokens=first_tokens(running)
            )
            assigned = self._lanes.assign(running, policies.selection, context, now)
            # Again while a lane is idle, as one whose micro-batch drafts nothing is.
            while batches := self._batches(draftable, assigned):
                for together in verified_together(batches):
                    others = waiting_for(together, running)
                    self._start_together(together, others, policies, context, now)
                draftable = [request for request in draftable if request.stage is READY]

    def _batches(
        self, draftable: Sequence[RequestState], assigned: Mapping[str, str | None]
    ) -> dict[str | None, list[RequestState]]:
        """What can start now: at most one micro-batch for each idle lane."""
        batches: dict[str | None, list[RequestState]] = {}
        idle = {None, *(state.name for state in self._lanes if state.idle)}
        for request in draftable:
            lane = assigned.get(request.name)
            if lane in request.failed_lanes or request.barred:
                lane = None
            if self._features and not self._features.can_draft(request, lane):
                lane = None
            if lane not in idle:
                continue
            batch = batches.setdefault(lane, [])
            if lane is None or not batch or batch[0].cohort == request.cohort:
                batch.append(request)
        return batches

    def _start_together(
        self,
        batches: Batches,
        others: Sequence[RequestState],
        policies: Policies,
        context: RoundContext,
        now: float,
    ) -> None:
        """Drafts on the assigned lanes and on every idle lane that always drafts; requests for
        which no depth is planned decode plainly. `others` wait for the same verification."""
        requests = [request for batch in batches.values() for request in batch]
        by_lane = {lane: batch for lane, batch in batches.items() if lane is not None}
        for state in self._lanes:
            if state.lane.always_drafts and state.idle:
                drafter = state.lane.view.drafter
                allowed = [
                    request
                    for request in requests
                    if request.drafter in (None, drafter) and state.name not in request.failed_lanes
                ]
                if allowed:
                    by_lane[state.name] = allowed
        if by_lane:
            on_lane = {request.name for batch in by_lane.values() for request in batch}
            waiting = [request for request in (*requests, *others) if request.name not in on_lane]
            self._plan_and_call(by_lane, waiting, policies, context, now)
        for request in requests:
            if request.stage is not DRAFTING:
                request.set_draft(NO_DRAFT)

    def _plan_and_call(
        self,
        by_lane: Mapping[str, Sequence[RequestState]],
        waiting: Sequence[RequestState],
        policies: Policies,
        context: RoundContext,
        now: float,
    ) -> None:
        """`waiting`: requests that no lane can draft for but that are in the same verification."""
        batches = [
            LaneBatch(lane, [request.view for request in batch]) for lane, batch in by_lane.items()
        ]
        batches.append(LaneBatch(None, [request.view for request in waiting]))
        plans = policies.speculation.plan(batches, context, now)
        calls = []
        for (lane, batch), plan in zip(by_lane.items(), plans, strict=False):  # without the last
            limited = [
                (request, _within(limit, request.draft_room, context.trees))
                for request, limit in zip(batch, plan.limits, strict=True)
                if limit.depth > 0
            ]
            if limited:
                calls.append(_Call(self._lanes[lane], limited, plan.rule))
        for call in calls:
            for request, _ in call.requests:
                request.stage = DRAFTING
            if not call.state.lane.always_drafts:
                call.state.busy = True
                lane = call.state.name
                call.assigned = {
                    request.name: (lane, self._switch_lane(request, lane, now))
                    for request, _ in call.requests
                }
        lookups = [call for call in calls if call.state.lane.always_drafts]
        for call in calls:
            if not call.state.lane.always_drafts:
                self._shared.tasks.spawn(self._run, [call], calls)
        if lookups:  # one task, since none of them waits for anything
            self._shared.tasks.spawn(self._run, lookups, calls)

    def _switch_lane(self, request: RequestState, lane: str, now: float) -> int:
        """The tokens on which the lane must catch up because the request was not on it before."""
        if request.lane == lane:
            return 0
        catch_up = request.lacks(lane)
        ahead = request.read_ahead.pop(lane, 0)
        if request.lane is not None:
            saved_s = ahead * self._lanes[lane].lane.view.catch_up_s
            before = request.lane
            switched = Switched(now, request.name, before, lane, catch_up, ahead, saved_s)
            self._shared.observe(switched)
        request.lane = lane
        return catch_up

    async def _run(self, own: Sequence["_Call"], calls: Sequence["_Call"]) -> None:
        """One call after the other; the last of `calls` to return builds the drafts of all
        requests."""
        for call in own:
            trees = await self._draft(call, calls)
            if call.trees is None:
                self._finish(call, trees, calls)
            else:  # too late: its draft is dropped; what it has read was recorded
                self._shared.changed()

    def _go_on_without(self, call: "_Call", calls: Sequence["_Call"], begun: float) -> None:
        call.seconds = asyncio.get_running_loop().time() - begun
        self._finish(call, _no_trees(call), calls)
        self._shared.changed()

    def _finish(self, call: "_Call", drafted: FlatTrees, calls: Sequence["_Call"]) -> None:
        call.trees = drafted
        trees = [other.trees for other in calls if other.trees is not None]
        if len(trees) == len(calls):
            self._build_drafts(calls, trees)

    def _build_drafts(self, calls: Sequence["_Call"], trees: Sequence[FlatTrees]) -> None:
        """Merges what all lanes have proposed for each request. `trees`: by call."""
        # Lookups are too short to be distinguished from the handling around them.
        timed = [call.seconds for call in calls if not call.state.lane.always_drafts]
        seconds = max(timed, default=0.0)
        requests: list[RequestState] = []
        proposals: dict[str, list[Proposal]] = {}
        assigned: dict[str, tuple[str, int]] = {}
        for call, drafted in zip(calls, trees, strict=True):
            assigned.update(call.assigned)
            name = call.state.name
            sizes = drafted.sizes.tolist()
            found_nothing: list[str] = []
            for place, ((request, _), nodes) in enumerate(zip(call.requests, sizes, strict=True)):
                own = proposals.get(request.name)
                if own is None:
                    own = proposals[request.name] = []
                    requests.append(request)
                if nodes:
                    own.append((name, drafted, place))
                elif request.name in call.answered:
                    found_nothing.append(request.name)
            if found_nothing:
                self._estimates.acceptance.observe_miss(found_nothing, name)
        merged = self._estimates.merge([*proposals.values()])
        for request, own, tree in zip(requests, proposals.values(), merged, strict=True):
            proposers = [lane for lane, _, _ in own]
            lane, caught_up = assigned.get(request.name, _NOT_ASSIGNED)
            request.set_draft(
                fast_new(RoundDraft, (tree, own, proposers, lane, caught_up, True, seconds))
            )
        self._shared.changed()

    async def _draft(self, call: "_Call", calls: Sequence["_Call"]) -> FlatTrees:
        """What the lane proposes; nothing if it is lost."""
        name, clock = call.state.name, asyncio.get_running_loop().time
        orders = []
        for request, limit in call.requests:
            prefix = request.served.prefix_for(name)
            features = self._features.of_order(request, name, prefix) if self._features else None
            orders.append(fast_new(DraftOrder, (prefix, limit.depth, limit.width, False, features)))
        started = clock()
        on_late = partial(self._go_on_without, call, calls, started)
        requests = [request for request, _ in call.requests]
        answers = await self._lanes.draft(call.state, requests, orders, call.rule, on_late)
        seconds = clock() - started
        late = call.trees is not None
        if not late:
            call.seconds = seconds
        if answers is None:
            return _no_trees(call)
        call.answered = {answer.request for answer in answers if isinstance(answer, Draft)}
        # More tokens may have been committed since a late call's orders were sent.
        read = [order.prefix.base + len(order.prefix.delta) if late else None for order in orders]
        trees = flatten(
            [
                take_answer(request, name, answer, upto)
                for request, answer, upto in zip(requests, answers, read, strict=True)
            ]
        )
        predicted_s = self._estimates.learn_draft_cost(name, orders, trees, seconds)
        drafted = Drafted(
            clock(), name, seconds, len(orders), len(trees.tokens), trees, predicted_s
        )
        self._shared.observe(drafted)
        return trees


_NOT_ASSIGNED: tuple[None, int] = (None, 0)


@dataclass(slots=True)
class _Call:
    """One draft call to one lane, for one micro-batch."""

    state: LaneState
    requests: Sequence[tuple[RequestState, DraftLimit]]
    rule: StepRule | None
    assigned: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """RoundDraft.lane and .caught_up by request; empty for a lane that always drafts."""
    seconds: float = 0.0
    """Until the lane answered, or the round went on without it."""
    trees: FlatTrees | None = None
    """By request; None until then."""
    answered: Collection[str] = ()
    """The requests for which the lane has drafted, even if it proposed nothing."""


def _no_trees(call: _Call) -> FlatTrees:
    return flatten([DraftTree.empty()] * len(call.requests))


def _within(limit: DraftLimit, room: int, trees: bool) -> DraftLimit:
    if limit.depth <= room and (trees or limit.width == 1):
        return limit
    return DraftLimit(min(limit.depth, room), limit.width if trees else 1)
