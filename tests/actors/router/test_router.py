"""Replicas learn from each other through the router, and lose nothing but that without it."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.router.replica_side import Pooling, PoolingParams, learners_of
from actors.router.router import Answer, Report, Router, RouterParams
from benchmarks.simulator.clock import run
from policies.cost import LinearCost
from policies.pooling import Pooled, Statistics
from policies.request import LaneView
from policies.scheduling.baselines import fcfs
from policies.selection.hedge import Hedge, HedgeParams
from policies.speculation.baselines import Fixed
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


def report(
    replica: str, value: float, version: int = 1, incarnation: int = 1, name: str = "x"
) -> Report:
    return Report(
        replica=replica, incarnation=incarnation, version=version, statistics={name: [value]}
    )


def test_everyone_is_told_the_sum_of_the_others() -> None:
    async def main() -> None:
        router = Router()
        assert (await router.exchange(report("a", 1.0)))["others"] == {}
        assert (await router.exchange(report("b", 10.0)))["others"] == {"x": [1.0]}
        assert (await router.exchange(report("c", 100.0)))["others"] == {"x": [11.0]}
        assert (await router.exchange(report("a", 2.0, version=2)))["others"] == {"x": [110.0]}
        assert (await router.exchange(report("b", 10.0, version=2)))["others"] == {"x": [102.0]}

    run(main())


def test_reports_that_come_late_or_twice_change_nothing() -> None:
    async def main() -> None:
        router = Router()
        await router.exchange(report("a", 5.0, version=3))
        await router.exchange(report("a", 4.0, version=2))
        await router.exchange(report("a", 9.0, version=3))
        assert (await router.exchange(report("b", 0.0)))["others"] == {"x": [5.0]}

    run(main())


def test_a_new_incarnation_replaces_the_old_one_and_is_not_counted_beside_it() -> None:
    async def main() -> None:
        router = Router()
        await router.exchange(report("a", 5.0, version=90, incarnation=1))
        await router.exchange(report("a", 1.0, version=1, incarnation=2))
        await router.exchange(report("a", 6.0, version=91, incarnation=1))  # was on its way
        assert (await router.exchange(report("b", 0.0)))["others"] == {"x": [1.0]}

    run(main())


def test_numbers_that_would_spoil_the_sums_are_dropped() -> None:
    async def main() -> None:
        router = Router()
        await router.exchange(report("a", 5.0))
        await router.exchange(report("a", float("nan"), version=2))
        assert (await router.exchange(report("b", 0.0)))["others"] == {"x": [5.0]}

    run(main())


def test_the_departed_fade_and_go() -> None:
    params = RouterParams(departed_after_s=30, half_life_s=600, least_weight=0.01)

    async def told(router: Router, version: int) -> dict[str, list[float]]:
        return (await router.exchange(report("b", 0.0, version)))["others"]

    async def main() -> None:
        router = Router(params)
        await router.exchange(report("a", 8.0))
        await asyncio.sleep(30)
        assert await told(router, 1) == {"x": [8.0]}
        await asyncio.sleep(600)
        assert await told(router, 2) == {"x": [pytest.approx(4.0)]}
        await asyncio.sleep(600 * 6)
        assert await told(router, 3) == {}
        await router.exchange(report("a", 9.0, version=2))
        assert await told(router, 4) == {"x": [9.0]}, "one that is back counts in full"

    run(main())


def test_the_number_of_replicas_is_bounded_and_the_longest_silent_go_first() -> None:
    async def main() -> None:
        router = Router(RouterParams(max_replicas=3))
        for number in range(5):
            await router.exchange(report(f"r{number}", 10.0**number))
        await router.exchange(report("r2", 100.0, version=2))
        await router.exchange(report("r5", 0.0))
        assert list((await router.view())["replicas"]) == ["r4", "r2", "r5"]

    run(main())


def test_people_see_drafters_and_replicas() -> None:
    async def main() -> None:
        router = Router()
        for replica, seconds in (("a", 1.0), ("b", 3.0)):
            statistics: Statistics = {
                "Hedge:drafter/tiny": [100.0, seconds, 20.0],
                "Hedge:drafter/": [10.0, 1.0, 10.0],
                "Hedge:plain_bound": [1.0, 1.0, 1.0],
                "calibration/tiny:seen": [4.0] * 80,
            }
            await router.exchange(
                Report(replica=replica, incarnation=7, version=1, statistics=statistics)
            )
        await asyncio.sleep(2)
        view = await router.view()
        assert view["drafters"] == {
            "Hedge": {
                "tiny": {"tokens_per_s": 50.0, "slots": 40.0},
                "": {"tokens_per_s": 10.0, "slots": 20.0},
            }
        }
        alive = {"incarnation": 7, "version": 1, "silent_s": 2.0, "weight": 1.0}
        assert view["replicas"] == {"a": alive, "b": alive}
        assert json.loads(json.dumps(view)) == view

    run(main())


class Line:
    """To a router that may be down, slow, or another one."""

    def __init__(self, router: Router | None) -> None:
        self.router = router
        self.seconds = 0.01

    async def exchange(self, report: Report) -> Answer:
        await asyncio.sleep(self.seconds)
        if self.router is None:
            raise RuntimeError("the router is dead")
        sent: Report = json.loads(json.dumps(report))
        answer: Answer = json.loads(json.dumps(await self.router.exchange(sent)))
        return answer


@dataclass
class Counter:
    """The simplest learner: what it has seen, and what it was told."""

    seen: float
    told: float = 0.0

    def export(self) -> Statistics:
        return {"seen": [self.seen]}

    def pool(self, others: Statistics) -> None:
        (self.told,) = others.get("seen", [0.0])


def pooling(name: str, line: Line, learner: Pooled, incarnation: int = 1) -> Pooling:
    return Pooling(name, incarnation, line.exchange, lambda: {"counter": learner})


def test_a_dead_router_is_forgotten_slowly_and_its_successor_knows_all_again() -> None:
    """Never for a moment is anything lost that others still know."""

    async def main() -> None:
        line = Line(Router())
        counters = {name: Counter(seen) for name, seen in (("a", 1.0), ("b", 10.0), ("c", 100.0))}
        clients = [pooling(name, line, counter) for name, counter in counters.items()]
        tasks = []
        for client in clients:
            tasks.append(asyncio.create_task(client.run()))
            await asyncio.sleep(1)
        await asyncio.sleep(10)
        everything = {"a": 110.0, "b": 101.0, "c": 11.0}
        assert {name: one.told for name, one in counters.items()} == everything

        line.router = None
        await asyncio.sleep(600)
        assert all(client.failures > 100 for client in clients)
        for name, told in everything.items():
            assert counters[name].told == pytest.approx(told / 2, rel=0.02)

        line.router = Router()
        counters["b"].seen = 20.0
        for _ in range(30):
            await asyncio.sleep(1)
            for name, told in everything.items():
                assert counters[name].told >= told / 2.1
        assert {name: one.told for name, one in counters.items()} == {
            "a": 120.0,
            "b": 101.0,
            "c": 21.0,
        }
        for task in tasks:
            task.cancel()

    run(main())


def test_a_router_that_does_not_answer_is_given_up_each_time() -> None:
    async def main() -> None:
        line = Line(Router())
        line.seconds = 1e6
        client = pooling("a", line, Counter(1.0))
        task = asyncio.create_task(client.run())
        await asyncio.sleep(101)
        assert client.failures == 10  # five seconds of waiting, five of pause
        task.cancel()

    run(main())


def test_policies_may_be_exchanged_between_reports() -> None:
    async def main() -> None:
        line = Line(Router())
        before, after, other = Counter(1.0), Counter(0.0), Counter(10.0)
        learners: dict[str, Pooled] = {"counter": before}
        client = Pooling("a", 1, line.exchange, lambda: learners)
        other_client = pooling("b", line, other)
        await client.report()
        await other_client.report()
        assert other.told == 1.0
        learners = {"counter": after}
        await client.report()
        assert after.told == 10.0
        await asyncio.sleep(20)
        await other_client.report()
        assert other.told == 0.0

    run(main())


class Replica:
    """A coordinator with a bad and a good drafter, and Hedge to choose between them."""

    def __init__(self, name: str, line: Line) -> None:
        self.name = name
        self.drafted_by: list[str | None] = []
        lanes = [
            Lane(LaneView(FAR, FAR, capacity=8), PacedDrafter(lambda: make_drafter(FAR, 3.0))),
            Lane(LaneView(NEAR, NEAR, capacity=8), PacedDrafter(lambda: make_drafter(NEAR, 0.02))),
        ]
        views = [lane.view for lane in lanes]
        cost = LinearCost(0, 0, 0.0003)
        costs = Costs(LinearCost(0, 1e-5, 0.01), {NEAR: cost, FAR: cost}, 64, 64, 64)
        estimates = Estimates(costs, views)
        # Sure of itself: only what it knows decides.
        policies = Policies(fcfs(), Hedge(HedgeParams(doubt=0.0)), Fixed())
        self.coordinator = Coordinator(
            PacedVerifier(make_verifier),
            lanes,
            policies,
            estimates,
            Limits(max_batch=4, kv_tokens=1024),
            observe=self.observe,
        )
        self.learners = learners_of(policies, estimates, views)
        pooling = Pooling(name, 1, line.exchange, lambda: self.learners, PoolingParams(0.1))
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
def test_a_replica_begins_with_what_another_has_learned(alive: bool) -> None:
    """The second replica has served nothing. Alone it begins with the drafter that is named
    first, which is the worse one; either way its text is the same."""

    async def main() -> None:
        line = Line(Router() if alive else None)
        first = Replica("first", line)
        for number in range(12):
            await first.serve(number)
        assert set(first.drafted_by[-4:]) == {NEAR}
        second = Replica("second", line)
        await asyncio.sleep(0.5)
        assert set(second.learners) == {"Hedge", f"calibration/{NEAR}", f"calibration/{FAR}"}
        assert await second.serve(0) == plainly([PROMPTS[0]], [GREEDY])[0]
        assert second.drafted_by[0] == (NEAR if alive else FAR)
        await first.close()
        await second.close()

    run(main())
