"""The lanes of a coordinator: idle, busy or lost, and the recovery of lost ones."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from actors.coordinator.background_tasks import Tasks
from actors.coordinator.events import Event, LaneDown, LaneUp
from actors.coordinator.request_state import RequestState
from actors.coordinator.settings import Lane
from actors.hosts.protocol import DrafterHost, HostLost
from engine.errors import InvalidRequest
from engine.protocol import Draft, Failed, Missing, NoRoom
from policies.request import LaneView
from policies.tree import DraftTree


@dataclass(slots=True)
class LaneState:
    lane: Lane
    busy: bool = False
    down: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.lane.view.name

    @property
    def idle(self) -> bool:
        return not (self.busy or self.down)


class Lanes:
    def __init__(
        self,
        lanes: Sequence[Lane],
        observe: Callable[[Event], None],
        tasks: Tasks,
        changed: Callable[[], None],
    ) -> None:
        self._states = {lane.view.name: LaneState(lane) for lane in lanes}
        self._observe = observe
        self._tasks = tasks
        self._changed = changed

    def __getitem__(self, name: str) -> LaneState:
        return self._states[name]

    def __iter__(self) -> Iterator[LaneState]:
        return iter(self._states.values())

    def check_drafter(self, name: str | None) -> None:
        """Raises InvalidRequest for a drafter that no lane has."""
        known = dict.fromkeys(state.lane.view.drafter for state in self._states.values())
        if name is not None and name not in known:
            there_are = f"there are {', '.join(known)}" if known else "there are none"
            raise InvalidRequest("speculation.drafter", f"there is no {name!r}; {there_are}")

    def selectable(self) -> list[LaneView]:
        """The lanes that the selection policy may assign requests to."""
        return [
            state.lane.view
            for state in self._states.values()
            if not state.down and not state.lane.always_drafts
        ]

    def lose(self, state: LaneState, error: HostLost) -> None:
        state.busy = False
        if state.down:
            return  # already found by a check
        state.down = True
        self._observe(LaneDown(asyncio.get_running_loop().time(), state.name, str(error)))
        self._tasks.spawn(self._recover, state)

    async def _recover(self, state: LaneState) -> None:
        """The new host is empty: it answers Missing and is sent all committed tokens."""
        clock = asyncio.get_running_loop().time
        lost_s = clock()
        await state.lane.host.recover()
        state.down = False
        self._observe(LaneUp(clock(), state.name, clock() - lost_s))
        self._changed()

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
            *(self._forget_at(state.lane.host, requests) for state in self._states.values())
        )

    async def _forget_at(self, host: DrafterHost, requests: Sequence[str]) -> None:
        """A lost host holds nothing any more; the next order or check finds the loss."""
        with suppress(HostLost):
            await host.forget(requests)


def take_answer(
    request: RequestState,
    lane: str,
    answer: Draft | Missing | NoRoom | Failed,
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
