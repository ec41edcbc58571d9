"""Measures the coordinator's own CPU time per round.

`python -m benchmarks.coordinator [--json FILE]`.

Hosts answer from tables in virtual time. Their CPU time is subtracted, and so is what the event
loop takes for each of their timers, which stand for transport. What remains is the round loop,
policies, calibration, orders and streams. Exits with an error where a bound is exceeded.
"""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from benchmarks.report import Record, parser, publish
from cluster.plan.simulator.clock import run
from engine.kv.blocks import KvState
from engine.protocol import Draft, DraftOrder, Missing, NoRoom, Verdict, VerifyOrder
from engine.request import TargetLimits
from engine.sampling.params import SamplingParams
from policies.catalogue import fair, make_schedule, make_selection, make_speculation
from policies.cost import ForwardCost
from policies.protocols import StepRule
from policies.request import LaneView
from policies.tree import DraftTree

BOUNDS_MS = {("chain", 32): 1.0, ("tree of 16", 32): 3.0}
"""By draft and number of requests; other cases have no bound."""
REQUESTS = (8, 32, 64)
WARM_UP_ROUNDS = 50
ROUNDS = 300
VERIFY_S, DRAFT_S = 0.02, 0.0004
BARE_WAITS = 1000
PROMPT = [1] * 64
CHAIN = DraftTree.chain([5, 5, 5, 5], [0.9, 0.8, 0.8, 0.7])
TREE = DraftTree.build(
    [5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7, 5],
    [-1, -1, -1, 0, 0, 1, 3, 3, 4, 6, 6, 7, 9, 9, 10, 12],
    [0.7, 0.2, 0.1, 0.7, 0.2, 0.5, 0.7, 0.2, 0.4, 0.7, 0.2, 0.3, 0.7, 0.2, 0.3, 0.7],
)
DRAFTS = {"chain": CHAIN, "tree of 16": TREE}


@dataclass
class ExcludedTime:
    """CPU time that is not the coordinator's."""

    hosts_s: float = 0.0
    """Spent inside the hosts."""
    waits: int = 0
    """Timers that stood for transport or the work of a device."""

    async def wait(self, seconds: float) -> None:
        self.waits += 1
        await asyncio.sleep(seconds)


@dataclass
class TableDrafter:
    """Proposes the same tree for every order."""

    tree: DraftTree
    excluded: ExcludedTime

    async def draft(
        self, orders: Sequence[DraftOrder], rule: StepRule | None
    ) -> list[Draft | Missing | NoRoom]:
        started = time.process_time()
        answers: list[Draft | Missing | NoRoom] = [
            Draft(order.prefix.request, order.prefix.attempt, order.prefix.round, self.tree)
            for order in orders
        ]
        self.excluded.hosts_s += time.process_time() - started
        await self.excluded.wait(DRAFT_S)
        return answers

    async def forget(self, requests: Collection[str]) -> None: ...

    async def recover(self) -> None: ...


@dataclass
class TableVerifier:
    """Accepts the draft tokens 5, 5 and then commits 9."""

    excluded: ExcludedTime
    limits: TargetLimits = field(default_factory=lambda: TargetLimits(100, 1 << 20, ()))

    async def verify(self, orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom]:
        started = time.process_time()
        answers: list[Verdict | Missing | NoRoom] = []
        for order in orders:
            prefix, path = order.prefix, order.tree.follow((5, 5))
            tokens = (5, 5, 9)[-1 - len(path) :]
            answers.append(
                Verdict(prefix.request, prefix.attempt, prefix.round, tuple(path), tokens)
            )
        self.excluded.hosts_s += time.process_time() - started
        await self.excluded.wait(VERIFY_S)
        return answers

    async def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.zeros(len(token_ids), np.float32)

    async def forget(self, requests: Collection[str]) -> None: ...

    async def kv_state(self) -> KvState:
        return KvState(free=0, used=0, cached=0, total=0)

    async def recover(self) -> None: ...


async def own_ms(draft: str, requests: int, speculation: str) -> float:
    """Milliseconds of the coordinator's CPU time per round of all requests."""
    excluded = ExcludedTime()
    rounds = 0.0

    def observe(event: Event) -> None:
        nonlocal rounds
        if isinstance(event, Verified):
            rounds += len(event.outcomes) / requests

    lanes = [
        Lane(LaneView(name, name, requests), TableDrafter(DRAFTS[draft], excluded)) for name in "ab"
    ]
    costs = Costs(
        ForwardCost(1e-7, 1e-4, 0.02, 128, 3e-4),
        {lane.view.name: ForwardCost(0, 1e-6, 1e-4) for lane in lanes},
        verify_budget=2048,
        draft_budgets={lane.view.name: 2048 for lane in lanes},
        most_tokens=2048,
    )
    estimates = Estimates(costs, [lane.view for lane in lanes])
    coordinator = Coordinator(
        TableVerifier(excluded),
        lanes,
        Policies(
            fair(make_schedule("default")),
            make_selection("hedge"),
            make_speculation(speculation, calibrations=estimates.calibrations),
        ),
        estimates,
        Limits(
            max_batch=requests, kv_tokens=1 << 30, forward_tokens=1 << 14, unread_tokens=1 << 20
        ),
        observe=observe,
    )
    endless = SamplingParams(temperature=0, max_tokens=1 << 19)
    streams = [coordinator.submit(str(n), PROMPT, endless) for n in range(requests)]
    while rounds < WARM_UP_ROUNDS:
        await asyncio.sleep(VERIFY_S)
    first, before, started = rounds, replace(excluded), time.process_time()
    while rounds < first + ROUNDS:
        await excluded.wait(VERIFY_S)
    spent = time.process_time() - started - (excluded.hosts_s - before.hosts_s)
    waits = excluded.waits - before.waits
    assert len(streams) == requests
    await coordinator.close()
    return 1000 * (spent - waits * await _wait_s()) / ROUNDS


async def _wait_s() -> float:
    """CPU time of one timer in an idle event loop."""
    started = time.process_time()
    for _ in range(BARE_WAITS):
        await asyncio.sleep(DRAFT_S)
    return (time.process_time() - started) / BARE_WAITS


def main() -> None:
    arguments = parser(__doc__).parse_args()
    records, missed = [], []
    for draft, requests, speculation in product(DRAFTS, REQUESTS, ("fixed", "planner")):
        name = f"coordinator/{draft}/{requests}/{speculation}"
        bound = BOUNDS_MS.get((draft, requests))
        spent = run(own_ms(draft, requests, speculation))
        if bound is None:
            records.append(Record(name, spent, "ms"))
            continue
        records.append(Record.over(bound, name, spent, "ms"))
        if spent > bound:
            missed.append(name)
    publish(records, arguments.json)
    if missed:
        raise SystemExit(f"above the bound: {', '.join(missed)}")


if __name__ == "__main__":
    main()
