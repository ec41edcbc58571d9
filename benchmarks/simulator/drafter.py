"""The simulated drafter: takes the time that a cost model says, proposes what acceptance draws.

It follows soft state by deltas like any host, and honours step rules level by level.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.random import Generator

from actors.hosts.protocol import HostLost
from benchmarks.simulator.acceptance import Acceptance
from benchmarks.simulator.device import NO_FAULTS, Device, Faults
from benchmarks.simulator.draft_levels import Growth, grow
from benchmarks.simulator.scripts import DrafterScript, Target
from engine.protocol import Draft, DraftOrder, Missing, NoRoom
from engine.soft_state import HeldRequest, SoftState
from policies.cost import CostModel
from policies.protocols import StepRule

_MAX_REQUESTS = 4096
"""As the engine's hosts."""
_CHUNK = 512
"""Committed tokens that enter one forward of a drafter, as engine/drafters/model.py has it."""
_NOTHING_DRAFTED = np.empty(0, np.float32)


class SimulatedDrafter:
    def __init__(
        self,
        drafter: str,
        cost: CostModel | None,
        target: Target,
        acceptance: Acceptance,
        domains: Mapping[str, str],
        *,
        transport_s: float = 0.0,
        faults: Faults = NO_FAULTS,
        draws: Generator | None = None,
    ) -> None:
        """`drafter` and the request's domain name its acceptance; without `cost` (a lookup) it
        takes no time."""
        self.device = Device(drafter, transport_s, faults, draws)
        self._drafter = drafter
        self._cost = cost
        self._target = target
        self._acceptance = acceptance
        self._domains = domains
        self._state = SoftState(_MAX_REQUESTS, on_drop=self._drop)
        self._scripts: dict[str, DrafterScript] = {}
        self._rows: dict[str, int] = {}
        """KV rows of each request: of committed tokens, and of drafted ones that may become so."""

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom]:
        async with self.device.turn():
            followed = self._state.accept([order.prefix for order in orders])
            growths = [
                self._grow(order, held)
                for order, held in zip(orders, followed, strict=True)
                if isinstance(held, HeldRequest)
            ]
            _choose_levels(growths, rule)
            await self._work(self._seconds(growths))
            # Before the turn ends: while answers travel, a request may already be forgotten here.
            answers = iter(growths)
            return [
                held if isinstance(held, Missing) else self._answer(order, held, next(answers))
                for order, held in zip(orders, followed, strict=True)
            ]

    async def forget(self, requests: Collection[str]) -> None:
        async with self.device.turn():
            self._state.forget(requests)

    async def recover(self) -> None:
        await self.device.recover()

    async def _work(self, seconds: float) -> None:
        try:
            await self.device.work(seconds)
        except HostLost:
            self._state.forget(list(self._state))
            raise

    def _grow(self, order: DraftOrder, held: HeldRequest) -> Growth:
        request, start = order.prefix.request, held.start
        script = self._scripts.get(request)
        if script is None:
            domain = self._domains[request]
            script = self._scripts[request] = DrafterScript(
                self._target, self._acceptance, request, start.seed, domain, self._drafter
            )
        context = len(held.committed)
        return grow(request, context, script, context - start.prompt_len, order.depth, order.width)

    def _seconds(self, growths: Sequence[Growth]) -> float:
        """Forwards as engine/drafters/model.py runs them: committed tokens that are new, in chunks,
        the last one proposing the first level; then one forward per further level."""
        if self._cost is None:
            return 0.0
        news = [self._catch_up(growth) for growth in growths]
        context = sum(growth.context for growth, new in zip(growths, news, strict=True) if new)
        seconds, left = 0.0, sum(news)
        while left > 0:
            seconds += self._cost.predict(context, min(left, _CHUNK))
            left -= _CHUNK
        for level in range(2, max((growth.levels for growth in growths), default=0) + 1):
            growths = [growth for growth in growths if growth.levels >= level]
            context = sum(growth.context for growth in growths)
            rows = sum(growth.width(level - 1) for growth in growths)
            seconds += self._cost.predict(context, rows)
        return seconds

    def _catch_up(self, growth: Growth) -> int:
        """Committed tokens to run now. The last one waits until a draft begins with it."""
        request = growth.request
        have = min(self._rows.get(request, 0), growth.context - 1)
        need = growth.context if growth.levels else growth.context - 1
        # The deepest level is proposed, not run.
        self._rows[request] = max(have, need) + min(growth.right, max(0, growth.levels - 1))
        return max(0, need - have)

    def _answer(self, order: DraftOrder, held: HeldRequest, growth: Growth) -> Draft:
        prefix = order.prefix
        matched: tuple[bool, ...] = ()
        if order.score:
            script, prompt_len = self._scripts[prefix.request], held.start.prompt_len
            first = max(held.unchanged, prompt_len) - prompt_len
            last = growth.context - prompt_len
            script.write(last)
            matched = tuple(run > 0 for run in script.right[first:last])
        return Draft(prefix.request, prefix.attempt, prefix.round, growth.tree, matched)

    def _drop(self, request: str, _held: HeldRequest) -> None:
        self._scripts.pop(request, None)
        self._rows.pop(request, None)


def _choose_levels(growths: Sequence[Growth], rule: StepRule | None) -> None:
    """Each draft to its depth, or as far as the rule lets it."""
    if rule is None:
        for growth in growths:
            growth.levels = growth.depth
        return
    drafting = [growth for growth in growths if growth.depth > 0]
    frontier = [_NOTHING_DRAFTED] * len(drafting)
    level = 0
    while drafting:
        wanted = rule(level, [growth.request for growth in drafting], frontier)
        level += 1
        further = []
        for growth, more in zip(drafting, wanted, strict=True):
            if more:
                growth.levels = level
                if growth.depth > level:
                    further.append(growth)
        drafting = further
        frontier = [growth.frontier(level) for growth in drafting]
