"""Replicas learn from each other through the router, and serve on without it."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.router.router import KEPT_S, MOST_REPLICAS, Pooling, Report, Router
from policies.cost import ForwardCost
from policies.pooling import ByLearner, Pooled, Statistics
from policies.request import LaneView
from policies.scheduling.fcfs import fcfs
from policies.selection.hedge import Hedge
from policies.speculation.fixed import Fixed
from tests.actors.coordinator.fake_hosts import PacedDrafter, PacedVerifier
from tests.actors.coordinator.test_loop import (
    GREEDY,
    PROMPTS,
    make_drafter,
    make_verifier,
    plainly,
    read,
)

NEAR, FAR = "near", "far"


def report(replica: str, value: float) -> Report:
    return Report(replica=replica, statistics={"learner": {"x": [value]}})


def sum_of(value: float) -> ByLearner:
    return {"learner": {"x": [value]}}


async def test_each_replica_is_answered_with_the_sum_of_the_others_last_reports() -> None:
    router = Router()
    assert await router.exchange(report("a", 1.0)) == {}
    assert await router.exchange(report("b", 10.0)) == sum_of(1.0)
    assert await router.exchange(report("c", 100.0)) == sum_of(11.0)
    assert await router.exchange(report("a", 2.0)) == sum_of(110.0)
    assert await router.exchange(report("b", 10.0)) == sum_of(102.0)


async def test_a_report_with_a_number_that_is_not_finite_changes_nothing() -> None:
    router = Router()
    await router.exchange(report("a", 5.0))
    await router.exchange(report("a", float("nan")))
    assert await router.exchange(report("b", 0.0)) == sum_of(5.0)


async def test_what_a_departed_replica_has_learned_is_kept_for_a_while() -> None:
    router = Router()
    await router.exchange(report("a", 8.0))
    await asyncio.sleep(KEPT_S)
    assert await router.exchange(report("b", 0.0)) == sum_of(8.0)
    await asyncio.sleep(1)
    assert await router.exchange(report("b", 0.0)) == {}


async def test_the_number_of_replicas_is_bounded_and_the_longest_silent_go_first() -> None:
    router = Router()
    for number in range(MOST_REPLICAS + 1):
        await router.exchange(report(f"r{number}", 1.0))
    await router.exchange(report("r2", 2.0))
    assert await router.exchange(report("new", 0.0)) == sum_of(MOST_REPLICAS - 2 + 2.0)


class Connection:
    """A connection to a router that may be down, slow, or replaced."""

    def __init__(self, router: Router | None) -> None:
        self.router = router
        self.seconds = 0.01
        self.calls = 0

    async def exchange(self, report: Report) -> ByLearner:
        self.calls += 1
        await asyncio.sleep(self.seconds)
        if self.router is None:
            raise RuntimeError("the router is dead")
        sent: Report = json.loads(json.dumps(report))
        answer: ByLearner = json.loads(json.dumps(await self.router.exchange(sent)))
        return answer


@dataclass
class Counter:
    """The simplest learner: its own sum and that of the others."""

    seen: float
    others: float = 0.0

    def export(self) -> Statistics:
        return {"seen": [self.seen]}

    def pool(self, others: Statistics) -> None:
        (self.others,) = others.get("seen", [0.0])


def pooling(name: str, connection: Connection, learner: Pooled) -> Pooling:
    return Pooling(name, connection.exchange, {"counter": learner})


async def test_pooled_statistics_stay_without_a_router_and_a_new_one_has_them_soon() -> None:
    connection = Connection(Router())
    counters = {name: Counter(seen) for name, seen in (("a", 1.0), ("b", 10.0), ("c", 100.0))}
    tasks = []
    for name, counter in counters.items():
        tasks.append(asyncio.create_task(pooling(name, connection, counter).run()))
        await asyncio.sleep(1)

    def others() -> list[float]:
        return [counter.others for counter in counters.values()]

    await asyncio.sleep(10)
    assert others() == [110.0, 101.0, 11.0]
    connection.router = None
    await asyncio.sleep(600)
    assert others() == [110.0, 101.0, 11.0]
    connection.router = Router()
    counters["b"].seen = 20.0
    await asyncio.sleep(11)
    assert others() == [120.0, 101.0, 21.0]
    for task in tasks:
        task.cancel()


async def test_an_exchange_that_takes_too_long_is_given_up() -> None:
    connection = Connection(Router())
    connection.seconds = 1e6
    task = asyncio.create_task(pooling("a", connection, Counter(1.0)).run())
    await asyncio.sleep(99)
    assert connection.calls == 10  # five seconds of waiting, five of pause
    task.cancel()


class Replica:
    """A coordinator with a bad and a good drafter, and Hedge to choose between them."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self.drafted_by: list[str | None] = []
        lanes = [
            Lane(LaneView(FAR, FAR, capacity=8), PacedDrafter(lambda: make_drafter(FAR, 3.0))),
            Lane(LaneView(NEAR, NEAR, capacity=8), PacedDrafter(lambda: make_drafter(NEAR, 0.02))),
        ]
        views = [lane.view for lane in lanes]
        cost = ForwardCost(0, 0, 0.0003)
        costs = Costs(ForwardCost(0, 1e-5, 0.01), {NEAR: cost, FAR: cost}, 64, {}, 64)
        estimates = Estimates(costs, views)
        policies = Policies(fcfs(), Hedge(), Fixed())
        self.coordinator = Coordinator(
            PacedVerifier(make_verifier),
            lanes,
            policies,
            estimates,
            Limits(max_batch=4, kv_tokens=1024),
            observe=self.observe,
        )
        pooling = Pooling(name, connection.exchange, {"acceptance": estimates.acceptance})
        self.task = asyncio.create_task(pooling.run())

    def observe(self, event: Event) -> None:
        if isinstance(event, Verified):
            self.drafted_by += [outcome.lane for outcome in event.outcomes if outcome.drafted]

    async def serve(self, number: int) -> list[int]:
        prompt = PROMPTS[number % len(PROMPTS)]
        return await read(self.coordinator.submit(f"{self.name}/{number}", prompt, GREEDY))

    async def close(self) -> None:
        self.task.cancel()
        await self.coordinator.close()


@pytest.mark.parametrize("alive", [True, False])
async def test_a_new_replica_starts_with_what_another_has_learned(alive: bool) -> None:
    """The second replica has served nothing. Without the router it starts with the first drafter in
    the list, which is the worse one; either way its output is the same."""
    connection = Connection(Router() if alive else None)
    first = Replica("first", connection)
    for number in range(12):
        await first.serve(number)
    assert set(first.drafted_by[-4:]) == {NEAR}
    second = Replica("second", connection)
    await asyncio.sleep(6)
    assert await second.serve(0) == plainly([PROMPTS[0]], [GREEDY])[0]
    assert second.drafted_by[0] == (NEAR if alive else FAR)
    await first.close()
    await second.close()
