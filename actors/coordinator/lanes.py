"""The lanes of a coordinator: idle, busy, late or lost, and the recovery of lost ones."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace

from actors.coordinator.events import LaneDown, LaneUp, Late
from actors.coordinator.request_state import RequestState
from actors.coordinator.settings import Lane, Shared
from actors.hosts.protocol import DrafterHost, HostLost
from engine.errors import InvalidRequest
from engine.protocol import Draft, DraftOrder, Failed, Missing, NoRoom
from policies.protocols import RoundContext, Selection, StepRule
from policies.request import LaneView
from policies.tree import DraftTree

_LOG = logging.getLogger("spindle")

_LATE_FACTOR = 3.0
"""A call may take this many times as long as one of its size usually takes."""

Answer = Draft | Missing | NoRoom | Failed


@dataclass(slots=True)
class LaneState:
    lane: Lane
    busy: bool = False
    late: bool = False
    """Busy for longer than rounds wait: they go on without it until it answers."""
    down: bool = False
    given_up: bool = False
    """Down for good: its drafter cannot be loaded."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.lane.view.name

    @property
    def idle(self) -> bool:
        return not (self.busy or self.down)


class Lanes:
    def __init__(self, lanes: Sequence[Lane], shared: Shared) -> None:
        self._states = {lane.view.name: LaneState(lane) for lane in lanes}
        self._shared = shared
        self._slow_s = shared.limits.slow_drafter_s

    def __getitem__(self, name: str) -> LaneState:
        return self._states[name]

    def __iter__(self) -> Iterator[LaneState]:
        return iter(self._states.values())

    @property
    def down(self) -> list[str]:
        """The names of those that are lost."""
        return [state.name for state in self if state.down]

    def check_drafter(self, name: str | None) -> None:
        """Raises InvalidRequest for a drafter that no lane has."""
        known = dict.fromkeys(state.lane.view.drafter for state in self._states.values())
        if name is not None and name not in known:
            there_are = f"there are {', '.join(known)}" if known else "there are none"
            raise InvalidRequest("speculation.drafter", f"there is no {name!r}; {there_are}")

    def assign(
        self,
        running: Sequence[RequestState],
        selection: Selection,
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        """A lane for each request, or None. Requests that name their drafter are placed first; the
        selection policy gets the remaining capacity."""
        lanes = self._selectable()
        names = {lane.name for lane in lanes}
        pinned = [request for request in running if request.drafter is not None]
        others = [
            request.view
            for request in running
            if not request.internal and request.drafter is None and self._can_use(request, names)
        ]
        if not pinned:
            return selection.assign(others, lanes, context, now)
        capacity = {lane.name: lane.capacity for lane in lanes}
        assigned: dict[str, str | None] = {}
        for request in pinned:
            candidates = [
                lane.name
                for lane in lanes
                if lane.drafter == request.drafter
                and capacity[lane.name]
                and self._can_use(request, {lane.name})
            ]
            # Its present lane if possible: another one would have to catch up.
            lane = max(
                candidates,
                key=lambda name: (name == request.lane, capacity[name]),
                default=None,
            )
            assigned[request.name] = lane
            if lane is not None:
                capacity[lane] -= 1
        left = [
            replace(lane, capacity=capacity[lane.name]) for lane in lanes if capacity[lane.name]
        ]
        return {**selection.assign(others, left, context, now), **assigned}

    def _can_use(self, request: RequestState, lanes: Set[str]) -> bool:
        """False if none of these lanes can draft for it, so that another request has the place.
        Without lanes nothing is known."""
        if not request.speculate or request.barred:
            return False
        unusable = request.failed_lanes | request.lacks_features
        return not (unusable and lanes and lanes <= unusable)

    def _selectable(self) -> list[LaneView]:
        """The lanes that the selection policy may assign requests to."""
        return [
            state.lane.view
            for state in self._states.values()
            if not (state.down or state.late or state.lane.always_drafts)
        ]

    async def draft(
        self,
        state: LaneState,
        requests: Sequence[RequestState],
        orders: Sequence[DraftOrder],
        rule: StepRule | None,
        on_late: Callable[[], None],
    ) -> Sequence[Answer] | None:
        """The answers of a lane to the orders of these requests; None if it is lost, which is then
        recovered in the background.

        `on_late` is called when the lane is late, so that the round goes on without its answer;
        until it has answered, the lane gets no other orders.
        """
        timer = None
        if not state.lane.always_drafts:
            usual_s = self._shared.estimates.usual_draft_s(state.name, orders)
            most_s = max(self._slow_s, _LATE_FACTOR * usual_s)
            timer = asyncio.get_running_loop().call_later(most_s, self._be_late, state, on_late)
        try:
            answers = await state.lane.host.draft(orders, rule)
        except HostLost as error:
            for request in requests:
                request.drafter_losses += 1
                if request.barred:
                    _LOG.error(
                        "request %s was in lost draft calls: only lookups draft for it now",
                        request.name,
                    )
            self.lose(state, error)
            return None
        finally:
            if timer is not None:
                timer.cancel()
        state.busy = state.late = False
        if not state.lane.always_drafts:
            for request, answer in zip(requests, answers, strict=True):
                if isinstance(answer, Draft):
                    request.drafter_losses = 0
        return answers

    def _be_late(self, state: LaneState, on_late: Callable[[], None]) -> None:
        _LOG.warning("%s does not answer: rounds go on without it", state.name)
        state.late = True
        self._shared.observe(Late(asyncio.get_running_loop().time(), state.name))
        on_late()

    def lose(self, state: LaneState, error: HostLost) -> None:
        state.busy = state.late = False
        if state.down:
            return  # already found by a check
        state.down = True
        self._shared.observe(LaneDown(asyncio.get_running_loop().time(), state.name, str(error)))
        self._shared.tasks.spawn(self._recover, state)
        self._shared.changed()  # requests may wait for it while it reads

    async def _recover(self, state: LaneState) -> None:
        """The new host is empty: it answers Missing and is sent all committed tokens. One that
        cannot load its drafter stays down, since no request needs it."""
        clock = asyncio.get_running_loop().time
        lost_s = clock()
        try:
            await state.lane.host.recover()
        except Exception:
            state.given_up = True
            _LOG.exception(
                "drafter %s cannot be loaded: requests are served without it, until the replica is "
                "started again",
                state.name,
            )
            return
        state.down = False
        self._shared.observe(LaneUp(clock(), state.name, clock() - lost_s))
        self._shared.changed()

    async def check(self) -> None:
        """Finds lost hosts of idle lanes before an order is sent to them."""
        await asyncio.gather(*(self._check(state) for state in self._states.values() if state.idle))

    async def _check(self, state: LaneState) -> None:
        try:
            await state.lane.host.forget(())
        except HostLost as error:
            self.lose(state, error)

    async def forget(self, requests: Sequence[str]) -> None:
        await asyncio.gather(
            *(self._forget_at(state.lane.host, requests) for state in self if not state.down)
        )

    async def _forget_at(self, host: DrafterHost, requests: Sequence[str]) -> None:
        """A lost host holds nothing any more; the next order or check finds the loss."""
        with suppress(HostLost):
            await host.forget(requests)


def take_answer(
    request: RequestState,
    lane: str,
    answer: Answer,
    upto: int | None = None,
) -> DraftTree:
    """Records how many committed tokens the lane has now, `upto` or all of them after a Draft, and
    returns its tree, empty for any other answer."""
    if isinstance(answer, Draft):
        served = request.served
        served.known[lane] = len(served.committed.ids) if upto is None else upto
        return answer.tree
    if isinstance(answer, Failed):
        request.failed_lanes.add(lane)
    request.served.known[lane] = answer.have if isinstance(answer, Missing) else 0
    return DraftTree.empty()
