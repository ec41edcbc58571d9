"""Which requests run: batch slots and KV are assigned in the order of the schedule policy."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from actors.coordinator.events import Event, Preempted
from actors.coordinator.request_state import READY, WAITING, RequestState
from actors.coordinator.settings import Limits
from actors.coordinator.stream import Overloaded
from policies.protocols import Schedule

_KV_BLOCK = 16
"""A running request reserves its context rounded up to blocks of this many tokens, and one block
more for its next round."""


class BatchSlots:
    """`requests`: all that the coordinator has, by name, as they come and go. `cancel` is called
    with the name of a request whose reader has stalled for too long."""

    def __init__(
        self,
        requests: Mapping[str, RequestState],
        limits: Limits,
        observe: Callable[[Event], None],
        cancel: Callable[[str], None],
    ) -> None:
        self._requests = requests
        self._limits = limits
        self._observe = observe
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, RequestState] = {}
        self._stalls: dict[str, asyncio.TimerHandle] = {}
        """Paused requests, each with the timer that cancels it."""
        self._kv_room = limits.kv_tokens
        """KV tokens for running requests; less than the limit while the verifier lacks KV."""

    @property
    def running(self) -> list[RequestState]:
        """Those with a batch slot, in the order in which they got it."""
        return list(self._running.values())

    def check_room(self) -> None:
        """Raises Overloaded if no further request may run or wait."""
        if len(self._requests) >= self._limits.max_batch + self._limits.max_waiting:
            raise Overloaded(
                f"{len(self._requests)} requests run and wait, the most that limits.max_batch and "
                "limits.max_waiting allow; try again later"
            )

    def is_paused(self, name: str) -> bool:
        """Whether it waits for its reader."""
        return name in self._stalls

    def assign(self, schedule: Schedule, now: float) -> None:
        """A request within a round keeps its slot and KV; one between rounds that the order does
        not reach is preempted."""
        between = [request for request in self._running.values() if request.stage is READY]
        any_waiting = len(self._requests) > len(self._running)
        if not between and not any_waiting:
            return
        within = [request for request in self._running.values() if request.stage is not READY]
        if any(request.lacks_kv for request in between):
            # The verifier had no room for these, so the KV holds no more than the others need.
            others = [*within, *(request for request in between if not request.lacks_kv)]
            self._kv_room = sum(map(_kv_need, others))
        slots = self._limits.max_batch - len(within)
        room = self._kv_room - sum(map(_kv_need, within))
        paused = self._paused(between)
        all_fit = sum(map(_kv_need, between)) <= room
        if not paused and (slots == 0 or (all_fit and not any_waiting)):
            return
        kept = self._that_fit(self._in_order(schedule, paused, now), within, slots)
        names = {request.name for request in kept}
        for request in between:
            if request.name not in names:
                self._preempt(request, now)
        for request in kept:
            if request.stage is WAITING:
                request.stage = READY
                request.slot_since_s = now
                if request.statistics.queue_s is None:
                    request.statistics.queue_s = now - request.view.arrival_s
                self._running[request.name] = request

    def release(self, name: str) -> None:
        """The request has left, running or not. Its KV is free, so that there may be room again."""
        self._running.pop(name, None)
        self._resume(name)
        self._kv_room = self._limits.kv_tokens

    def _paused(self, between: Sequence[RequestState]) -> set[str]:
        """Requests too far ahead of their readers; after limits.stalled_s they are cancelled."""
        most = self._limits.unread_tokens
        for request in between:
            if request.stream.unread_tokens > most and request.name not in self._stalls:
                timer = self._loop.call_later(self._limits.stalled_s, self._cancel, request.name)
                self._stalls[request.name] = timer
        for name in list(self._stalls):
            if self._requests[name].stream.unread_tokens <= most:
                self._resume(name)
        return set(self._stalls)

    def _resume(self, name: str) -> None:
        timer = self._stalls.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _in_order(
        self, schedule: Schedule, paused: Collection[str], now: float
    ) -> list[RequestState]:
        """The system's own requests, then users' in the order of the schedule policy, which is not
        shown those that are paused: they would take the places of others."""
        present = [request for name, request in self._requests.items() if name not in paused]
        internal = [request for request in present if request.internal]
        users = [request for request in present if not request.internal]
        if not users:
            return internal
        names = schedule.pick(
            [request.view for request in users],
            [name for name, request in self._running.items() if not request.internal],
            self._limits.max_batch,
            now,
        )
        return [*internal, *(self._requests[name] for name in names)]

    def _that_fit(
        self,
        order: Sequence[RequestState],
        within: Sequence[RequestState],
        slots: int,
    ) -> list[RequestState]:
        """The first ones of the order that are between rounds, as far as slots and KV last. If one
        does not fit, the rest waits. If it would exceed its tenant's equal part of the KV, only the
        rest of that tenant's waits, so that others' slots do not stay empty."""
        share = self._kv_room / len({request.view.tenant for request in order} or {""})
        held = Counter[str]()
        for request in within:
            held[request.view.tenant] += _kv_need(request)
        room = self._kv_room - held.total()
        kept: list[RequestState] = []
        blocked: set[str] = set()
        for request in order:
            tenant, need = request.view.tenant, _kv_need(request)
            if request.in_flight or tenant in blocked:
                continue
            if len(kept) == slots:
                break
            # Alone any request fits: limits.kv_tokens is at least a whole context.
            if need > room and (kept or within):
                if not held[tenant] or held[tenant] + need <= share:
                    break
                blocked.add(tenant)
                continue
            kept.append(request)
            room -= need
            held[tenant] += need
        return kept

    def _preempt(self, request: RequestState, now: float) -> None:
        """Its KV stays until the verifier needs the room, then is dropped and computed again."""
        request.stage = WAITING
        request.cohort = -1
        del self._running[request.name]
        self._observe(Preempted(now, request.name))


def _kv_need(request: RequestState) -> int:
    return -(-request.view.context // _KV_BLOCK) * _KV_BLOCK + _KV_BLOCK
