"""The simulated drafter: it takes the time of a cost model and proposes what acceptance draws.

Like any host it keeps soft state by deltas, and applies step rules level by level.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from cluster.plan.simulator.acceptance import Acceptance
from cluster.plan.simulator.device import NO_FAULTS, Device, Faults, SimulatedHost
from cluster.plan.simulator.draft_levels import DraftLevels, grow
from cluster.plan.simulator.outputs import DrafterOutput, Target
from engine.protocol import Draft, DraftOrder, Missing, NoRoom
from engine.soft_state import HeldRequest
from policies.cost import CostModel
from policies.protocols import StepRule

_CHUNK = 512
"""Most committed tokens in one forward of a drafter, as in engine/drafters/model.py."""
_NO_FRONTIER = np.empty(0, np.float32)


class SimulatedDrafter(SimulatedHost):
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
    ) -> None:
        """`drafter` and the request's domain select the acceptance model; without `cost` (a lookup)
        drafting takes no time."""
        super().__init__(Device(drafter, transport_s, faults), self._drop)
        self._drafter = drafter
        self._cost = cost
        self._target = target
        self._acceptance = acceptance
        self._domains = domains
        self._outputs: dict[str, DrafterOutput] = {}
        self._rows: dict[str, int] = {}
        """KV rows by request: committed tokens, and drafted ones that the target will accept."""

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom]:
        async with self.device.turn():
            accepted = self._state.accept([order.prefix for order in orders])
            drafts = [
                self._draft(order, held)
                for order, held in zip(orders, accepted, strict=True)
                if isinstance(held, HeldRequest)
            ]
            _choose_levels(drafts, rule)
            await self._work(self._seconds(drafts))
            # Before the turn ends: a request may be forgotten during the transport of the answer.
            answers = iter(drafts)
            return [
                held if isinstance(held, Missing) else self._answer(order, held, next(answers))
                for order, held in zip(orders, accepted, strict=True)
            ]

    def _draft(self, order: DraftOrder, held: HeldRequest) -> DraftLevels:
        request, start = order.prefix.request, held.start
        output = self._outputs.get(request)
        if output is None:
            domain = self._domains[request]
            output = self._outputs[request] = DrafterOutput(
                self._target, self._acceptance, request, start.seed, domain, self._drafter
            )
        context = len(held.committed)
        return grow(request, context, output, context - start.prompt_len, order.depth, order.width)

    def _seconds(self, drafts: Sequence[DraftLevels]) -> float:
        """The time of the forwards that engine/drafters/model.py would run: new committed tokens in
        chunks, the last of which proposes the first level; then one forward per further level."""
        if self._cost is None:
            return 0.0
        news = [self._catch_up(draft) for draft in drafts]
        context = sum(draft.context for draft, new in zip(drafts, news, strict=True) if new)
        seconds, left = 0.0, sum(news)
        while left > 0:
            seconds += self._cost.predict(context, min(left, _CHUNK))
            left -= _CHUNK
        for level in range(2, max((draft.levels for draft in drafts), default=0) + 1):
            drafts = [draft for draft in drafts if draft.levels >= level]
            context = sum(draft.context for draft in drafts)
            rows = sum(draft.width(level - 1) for draft in drafts)
            seconds += self._cost.predict(context, rows)
        return seconds

    def _catch_up(self, draft: DraftLevels) -> int:
        """Committed tokens to run now; without a draft the last one need not run."""
        request = draft.request
        have = min(self._rows.get(request, 0), draft.context - 1)
        need = draft.context if draft.levels else draft.context - 1
        # The deepest level is proposed, not run.
        self._rows[request] = max(have, need) + min(draft.right, max(0, draft.levels - 1))
        return max(0, need - have)

    def _answer(self, order: DraftOrder, held: HeldRequest, draft: DraftLevels) -> Draft:
        prefix = order.prefix
        matched: tuple[bool, ...] = ()
        if order.score:
            output, prompt_len = self._outputs[prefix.request], held.start.prompt_len
            first = max(held.unchanged, prompt_len) - prompt_len
            last = draft.context - prompt_len
            output.extend(last)
            matched = tuple(run > 0 for run in output.right[first:last])
        return Draft(prefix.request, prefix.attempt, prefix.round, draft.tree, matched)

    def _drop(self, request: str, _held: HeldRequest) -> None:
        self._outputs.pop(request, None)
        self._rows.pop(request, None)


def _choose_levels(drafts: Sequence[DraftLevels], rule: StepRule | None) -> None:
    """Each draft to its full depth, or to where the rule stops it."""
    if rule is None:
        for draft in drafts:
            draft.levels = draft.depth
        return
    drafting = [draft for draft in drafts if draft.depth > 0]
    frontier = [_NO_FRONTIER] * len(drafting)
    level = 0
    while drafting:
        wanted = rule(level, [draft.request for draft in drafting], frontier)
        level += 1
        further = []
        for draft, more in zip(drafting, wanted, strict=True):
            if more:
                draft.levels = level
                if draft.depth > level:
                    further.append(draft)
        drafting = further
        frontier = [draft.frontier(level) for draft in drafting]
