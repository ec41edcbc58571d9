"""Replicas learn from each other through the router, and serve on without it."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from actors.coordinator.estimates import Costs, Estimates
from actors.coordinator.events import Event, Verified
from actors.coordinator.loop import Coordinator
from actors.coordinator.settings import Lane, Limits, Policies
from actors.hosts.facts import DrafterFacts, costs_of_target, numbers_of_target
from actors.hosts.protocol import TargetCosts
from actors.router.replica_side import Pooling, PoolingParams, learners_of
from actors.router.router import Answer, Report, Router, RouterParams
from benchmarks.simulator.clock import run
from engine.draft_profile import DraftCosts
from policies.cost import LinearCost, RooflineCost, SwitchCost
from policies.pooling import Pooled, Statistics
from policies.request import LaneView
from policies.scheduling.baselines import fcfs
from policies.selection.hedge import Hedge
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
        replica=replica,
        incarnation=incarnation,
        version=version,
        statistics={name: [value]},
        facts={},
    )


def test_each_replica_is_answered_with_the_sum_of_the_others() -> None:
    async def main() -> None:
        router = Router()
        assert (await router.exchange(report("a", 1.0)))["others"] == {}
        assert (await router.exchange(report("b", 10.0)))["others"] == {"x": [1.0]}
        assert (await router.exchange(report("c", 100.0)))["others"] == {"x": [11.0]}
        assert (await router.exchange(report("a", 2.0, version=2)))["others"] == {"x": [110.0]}
        assert (await router.exchange(report("b", 10.0, version=2)))["others"] == {"x": [102.0]}

    run(main())


def test_late_and_duplicate_reports_change_nothing() -> None:
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
        await router.exchange(report("a", 6.0, version=91, incarnation=1))  # a late message
        assert (await router.exchange(report("b", 0.0)))["others"] == {"x": [1.0]}

    run(main())


def test_reports_with_numbers_that_are_not_finite_are_dropped() -> None:
    async def main() -> None:
        router = Router()
        await router.exchange(report("a", 5.0))
        await router.exchange(report("a", float("nan"), version=2))
        assert (await router.exchange(report("b", 0.0)))["others"] == {"x": [5.0]}

    run(main())


def test_statistics_of_departed_replicas_fade_and_are_dropped() -> None:
    params = RouterParams(departed_after_s=30, half_life_s=600, least_weight=0.01)

    async def others(router: Router, version: int) -> dict[str, list[float]]:
        return (await router.exchange(report("b", 0.0, version)))["others"]

    async def main() -> None:
        router = Router(params)
        await router.exchange(report("a", 8.0))
        await asyncio.sleep(30)
        assert await others(router, 1) == {"x": [8.0]}
        await asyncio.sleep(600)
        assert await others(router, 2) == {"x": [pytest.approx(4.0)]}
        await asyncio.sleep(600 * 6)
        assert await others(router, 3) == {}
        await router.exchange(report("a", 9.0, version=2))
        assert await others(router, 4) == {"x": [9.0]}, (
            "a replica that reports again counts in full"
        )

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


def test_the_view_lists_drafters_and_replicas() -> None:
    async def main() -> None:
        router = Router()
        for replica in ("a", "b"):
            statistics: Statistics = {
                "acceptance:tiny": [6.0, 10.0, 9.0, 20.0, 0.0],
                "acceptance:new": [0.0] * 5,
                "calibration/tiny:seen": [4.0] * 80,
            }
            await router.exchange(
                Report(
                    replica=replica,
                    incarnation=7,
                    version=1,
                    statistics=statistics,
                    facts={},
                )
            )
        await asyncio.sleep(2)
        view = await router.view()
        assert view["acceptance"] == {
            "tiny": {"accepted": 0.5, "levels": 60.0},
            "new": {"accepted": 0.0, "levels": 0.0},
        }
        alive = {"incarnation": 7, "version": 1, "silent_s": 2.0, "weight": 1.0}
        assert view["replicas"] == {"a": alive, "b": alive}
        assert json.loads(json.dumps(view)) == view

    run(main())


def test_what_replicas_know_of_models_is_kept_for_those_that_start_later() -> None:
    async def main() -> None:
        router = Router(RouterParams(max_models=2))
        connection = Connection(router)
        drafter = DrafterFacts(DraftCosts(LinearCost(1e-6, 2e-5, 0.001), 64), 1e6, (1, 3))
        verify = RooflineCost(1e-6, 2e-5, 0.001, 24, 3e-5, 8, 16)
        target = TargetCosts(verify, 32, SwitchCost(0.1, 0.002))
        facts = {"tiny": drafter.numbers(), "target": numbers_of_target(target)}
        await Pooling("a", 1, connection.exchange, dict, facts=facts).report()
        await Pooling("b", 1, connection.exchange, dict).report()
        known = await router.facts()
        assert DrafterFacts.of(known["tiny"]) == drafter
        assert costs_of_target(known["target"]) == target
        for name in ("small", "code"):
            later = {name: drafter.numbers()}
            await Pooling(name, 1, connection.exchange, dict, facts=later).report()
        assert list(await router.facts()) == ["small", "code"], "those of old configs go"

    run(main())


class Connection:
    """A connection to a router that may be down, slow, or replaced."""

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
    """The simplest learner: its own sum and that of the others."""

    seen: float
    others: float = 0.0

    def export(self) -> Statistics:
        return {"seen": [self.seen]}

    def pool(self, others: Statistics) -> None:
        (self.others,) = others.get("seen", [0.0])


def pooling(name: str, connection: Connection, learner: Pooled, incarnation: int = 1) -> Pooling:
    return Pooling(name, incarnation, connection.exchange, lambda: {"counter": learner})


def test_pooled_statistics_fade_without_a_router_and_return_with_a_new_one() -> None:
    """While the new router still lacks reports, replicas keep the old sums."""

    async def main() -> None:
        connection = Connection(Router())
        counters = {name: Counter(seen) for name, seen in (("a", 1.0), ("b", 10.0), ("c", 100.0))}
        clients = [pooling(name, connection, counter) for name, counter in counters.items()]
        tasks = []
        for client in clients:
            tasks.append(asyncio.create_task(client.run()))
            await asyncio.sleep(1)
        await asyncio.sleep(10)
        everything = {"a": 110.0, "b": 101.0, "c": 11.0}
        assert {name: counter.others for name, counter in counters.items()} == everything

        connection.router = None
        await asyncio.sleep(600)
        assert all(client.failures > 100 for client in clients)
        for name, total in everything.items():
            assert counters[name].others == pytest.approx(total / 2, rel=0.02)

        connection.router = Router()
        counters["b"].seen = 20.0
        for _ in range(30):
            await asyncio.sleep(1)
            for name, total in everything.items():
                assert counters[name].others >= total / 2.1
        assert {name: counter.others for name, counter in counters.items()} == {
            "a": 120.0,
            "b": 101.0,
            "c": 21.0,
        }
        for task in tasks:
            task.cancel()

    run(main())


def test_an_exchange_that_takes_too_long_is_given_up() -> None:
    async def main() -> None:
        connection = Connection(Router())
        connection.seconds = 1e6
        client = pooling("a", connection, Counter(1.0))
        task = asyncio.create_task(client.run())
        await asyncio.sleep(101)
        assert client.failures == 10  # five seconds of waiting, five of pause
        task.cancel()

    run(main())


def test_policies_may_be_replaced_between_reports() -> None:
    async def main() -> None:
        connection = Connection(Router())
        before, after, other = Counter(1.0), Counter(0.0), Counter(10.0)
        learners: dict[str, Pooled] = {"counter": before}
        client = Pooling("a", 1, connection.exchange, lambda: learners)
        other_client = pooling("b", connection, other)
        await client.report()
        await other_client.report()
        assert other.others == 1.0
        learners = {"counter": after}
        await client.report()
        assert after.others == 10.0
        await asyncio.sleep(20)
        await other_client.report()
        assert other.others == 0.0

    run(main())


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
        cost = LinearCost(0, 0, 0.0003)
        costs = Costs(LinearCost(0, 1e-5, 0.01), {NEAR: cost, FAR: cost}, 64, {}, 64)
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
        self.learners = learners_of(estimates, views)
        pooling = Pooling(name, 1, connection.exchange, lambda: self.learners, PoolingParams(0.1))
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
def test_a_new_replica_starts_with_what_another_has_learned(alive: bool) -> None:
    """The second replica has served nothing. Without the router it starts with the first drafter in
    the list, which is the worse one; either way its output is the same."""

    async def main() -> None:
        connection = Connection(Router() if alive else None)
        first = Replica("first", connection)
        for number in range(12):
            await first.serve(number)
        assert set(first.drafted_by[-4:]) == {NEAR}
        second = Replica("second", connection)
        await asyncio.sleep(0.5)
        assert set(second.learners) == {
            "acceptance",
            f"calibration/{NEAR}",
            f"calibration/{FAR}",
        }
        assert await second.serve(0) == plainly([PROMPTS[0]], [GREEDY])[0]
        assert second.drafted_by[0] == (NEAR if alive else FAR)
        await first.close()
        await second.close()

    run(main())
