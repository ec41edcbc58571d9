"""Priorities, fairness between tenants, triage and a bound on waiting, around any schedule.

Within each tenant of a priority class the order of the inner schedule is kept. The bound comes
before priorities: whatever the inner schedule prefers, no request waits for longer than
`starve_after_s + 2·gap + N · (TURN_S / (TURN_SHARE · slots) + 2·gap)`, where N is the number of
requests in the system and gap the longest time between two picks.
"""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from policies.protocols import Schedule
from policies.request import RequestView, RoundOutcome, by_arrival
from policies.scheduling.triage import Triage

TURN_S = 1.0
"""How long a turn lasts after the request has started to run."""
TURN_SHARE = 0.1
"""The largest share of all slot time that goes to turns, so that under overload, when all requests
wait for long, the inner schedule still decides the rest."""
PATIENT_TOKENS = 30
"""A request for fewer tokens starves that much sooner, so that it does not wait as long for long
outputs of its own client as these do for each other."""
TENANT_SLACK_S = 1.0
"""Slot time by which a tenant may be ahead of another before it loses a slot to it, so that tenants
of equal service do not swap in every round."""


@dataclass(frozen=True, slots=True)
class FairnessParams:
    starve_after_s: float = 30.0
    """A request that has waited for this long, or less if it asks for fewer than 30 tokens, gets a
    turn: it runs before all others. The longest wait beyond that comes first."""
    late_share: float = 0.1
    """New requests wait while more than this share of the running requests with a TPOT are late
    (triage.py); 1: never."""

    def __post_init__(self) -> None:
        if not self.starve_after_s > 0:  # nor NaN
            raise ValueError(f"starve_after_s is above 0, not {self.starve_after_s}")
        if not 0 < self.late_share <= 1:
            raise ValueError(f"late_share is above 0 and at most 1, not {self.late_share}")


class FairSchedule:
    """Wraps any schedule; see the module's docstring."""

    def __init__(self, inner: Schedule, params: FairnessParams = FairnessParams()) -> None:
        self._inner = inner
        self._params = params
        self._tenants: dict[str, str] = {}
        self._served: dict[str, float] = {}
        """Slot time of each tenant with a request in the system."""
        self._charged_s: dict[str, float] = {}
        """Until when the slot time of each running request is in `_served`."""
        self._now = -math.inf
        """When the latest pick or outcome was."""
        self._picked_s = -math.inf
        self._waiting_since: dict[str, float] = {}
        self._turns: dict[str, float | None] = {}
        """The requests with a turn, and when it ends; None: the request has not started to run."""
        self._next_turn_s = -math.inf
        self._triage = Triage(params.late_share)

    def arrive(self, request: RequestView, now: float) -> None:
        if request.tenant not in self._served:
            # A tenant joins at the level of the least served, so absence earns no credit.
            self._served[request.tenant] = min(self._served.values(), default=0.0)
        self._tenants[request.name] = request.tenant
        self._inner.arrive(request, now)

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        for name in self._charged_s.keys() - set(running):
            self._charge_rest(name, self._picked_s)  # it has not run since
        self._now = self._picked_s = now
        self._update_waiting_and_turns(requests, set(running), now)
        self._bound_claims(requests, set(running), slots)
        self._start_turns(requests, slots, now)
        preferred = self._inner.pick(requests, running, len(requests), now)
        placed = Counter(self._tenants[name] for name in self._turns)
        held = Counter(self._tenants[name] for name in running if name in self._tenants)
        by_name = {view.name: view for view in requests}
        classes: dict[int, list[str]] = {}
        for name in preferred:
            if name not in self._turns:
                classes.setdefault(by_name[name].priority, []).append(name)
        order = list(self._turns)
        for priority in sorted(classes, reverse=True):
            order += self._interleave_tenants(classes[priority], placed, held)
        views = [by_name[name] for name in order]
        picked = self._triage.admitted(views, set(running), self._turns, now, slots)[:slots]
        for name in picked:
            self._charged_s.setdefault(name, now)
        return picked

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        tenants, served, charged_s = self._tenants, self._served, self._charged_s
        self._now = now
        for outcome in outcomes:
            tenant = tenants.get(outcome.request)
            if tenant is not None:
                served[tenant] += outcome.seconds
                if outcome.request in charged_s:
                    charged_s[outcome.request] = now
        self._inner.observe(outcomes, now)

    def forget(self, request: str) -> None:
        self._charge_rest(request, self._now)
        tenant = self._tenants.pop(request, None)
        if tenant is not None and tenant not in self._tenants.values():
            del self._served[tenant]
        self._waiting_since.pop(request, None)
        self._turns.pop(request, None)
        self._inner.forget(request)

    def _charge_rest(self, request: str, until_s: float) -> None:
        """Slot time without an outcome, of a request that has left or lost its slot: else prompts
        that are cancelled before their first token would cost their tenant nothing."""
        since_s, tenant = self._charged_s.pop(request, until_s), self._tenants.get(request)
        if tenant is not None:
            self._served[tenant] += max(0.0, until_s - since_s)

    def _update_waiting_and_turns(
        self, requests: Sequence[RequestView], running: set[str], now: float
    ) -> None:
        # The coordinator leaves out requests whose clients read slowly: these are not waiting.
        self._waiting_since = {
            view.name: now if view.name in running else self._waiting_since.get(view.name, now)
            for view in requests
        }
        turns: dict[str, float | None] = {}
        for name, end in self._turns.items():
            if end is None and name in running:
                end = now + TURN_S
            if name in self._waiting_since and (end is None or now < end):
                turns[name] = end
        self._turns = turns

    def _bound_claims(self, requests: Sequence[RequestView], running: set[str], slots: int) -> None:
        """A tenant of which no request waits lacks nothing, so it earns no claim to catch up with
        those that use what it leaves: with it, it could stop them later for as long as they have.
        It keeps the claim that alternating between tenants leaves, TENANT_SLACK_S in each slot.
        """
        served = self._served
        if len(served) < 2:
            return
        waiting = {view.tenant for view in requests if view.name not in running}
        level = min((served[tenant] for tenant in waiting), default=max(served.values()))
        for tenant in served.keys() - waiting:
            served[tenant] = max(served[tenant], level - TENANT_SLACK_S * slots)

    def _start_turns(self, requests: Sequence[RequestView], slots: int, now: float) -> None:
        """Starts turns at the rate at which they use up TURN_SHARE."""
        starving = sorted(
            (starves_s, *by_arrival(view))
            for view in requests
            if (starves_s := self._starves_s(view)) <= now and view.name not in self._turns
        )
        if not starving:
            self._next_turn_s = max(self._next_turn_s, now)
        for _, _, name in starving:
            if now < self._next_turn_s:
                break
            self._turns[name] = None
            self._next_turn_s += TURN_S / (TURN_SHARE * max(1, slots))

    def _starves_s(self, view: RequestView) -> float:
        share = min(1.0, view.max_tokens / PATIENT_TOKENS)
        return self._waiting_since[view.name] + share * self._params.starve_after_s

    def _interleave_tenants(
        self, preferred: Sequence[str], placed: Counter[str], held: Counter[str]
    ) -> list[str]:
        """Orders the requests by giving one slot after another to the least served tenant. Each
        slot that a tenant gets counts as TENANT_SLACK_S of service, but one less while it gets
        fewer slots than it holds already."""
        queues: dict[str, list[str]] = {}
        for name in reversed(preferred):
            queues.setdefault(self._tenants[name], []).append(name)
        if len(queues) == 1:
            return list(preferred)
        place = {name: index for index, name in enumerate(preferred)}

        def entry(tenant: str) -> tuple[float, int, str]:
            given = placed[tenant] - (placed[tenant] < held[tenant])
            level = self._served[tenant] + TENANT_SLACK_S * given
            return (level, place[queues[tenant][-1]], tenant)

        order: list[str] = []
        heap = [entry(tenant) for tenant in queues]
        heapq.heapify(heap)
        while heap:
            tenant = heap[0][-1]
            order.append(queues[tenant].pop())
            placed[tenant] += 1
            if queues[tenant]:
                heapq.heapreplace(heap, entry(tenant))
            else:
                heapq.heappop(heap)
        return order
