"""Hosts that hang, die and come back, in virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from actors.hosts.protocol import HostLost, HostStalled
from actors.hosts.supervision import LONGEST_PAUSE_S, STEADY_S, Supervised
from benchmarks.simulator.clock import run
from engine.errors import SpindleError


class Refused(SpindleError):
    """An answer of the worker."""


@dataclass
class Worker:
    """One life: answers one call after the other, each after `seconds`."""

    number: int
    dies: bool
    alive: bool = True
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(self, method: str, *arguments: object) -> Any:
        async with self.turn:
            if not self.alive or self.dies:
                raise HostLost("the process is gone")
            if method == "refuse":
                raise Refused("not this one")
            (seconds,) = arguments
            assert isinstance(seconds, float | int)
            await asyncio.sleep(seconds)
            return self.number

    def kill(self) -> None:
        self.alive = False


@dataclass
class Site:
    """Where lives begin: which of them fail to start or die in their first call, and when each
    was asked for."""

    start_s: float = 1.0
    fails: Callable[[int], bool] = lambda number: False
    dies: Callable[[int], bool] = lambda number: False
    began_s: list[float] = field(default_factory=list)
    lives: list[Worker] = field(default_factory=list)

    async def begin(self, number: int) -> Worker:
        self.began_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.start_s)
        if self.fails(number):
            raise HostLost("it died while it was loading")
        self.lives.append(Worker(number, self.dies(number)))
        return self.lives[-1]

    def host(self, *, gives_up: bool = True) -> Supervised:
        return Supervised("it", self.begin, stalled_s=5.0, recovery_s=60.0, gives_up=gives_up)

    @property
    def pauses_s(self) -> list[float]:
        """Between the end of each start and the next one."""
        return [later - begun - self.start_s for begun, later in pairwise(self.began_s)]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_host_without_an_answer_is_killed_and_another_answers() -> None:
    async def main() -> None:
        site = Site()
        host = site.host()
        await host.start()
        begun = now()
        with pytest.raises(HostStalled, match=r"no answer for 5\.0 s"):
            await host.order("work", 1000.0, expected_s=1.0)
        assert now() - begun == pytest.approx(5.0)
        assert not site.lives[0].alive
        with pytest.raises(HostLost, match="it is down"):
            await host.order("work", 0.1, expected_s=1.0)
        await host.recover()
        assert await host.order("work", 0.1, expected_s=1.0) == 1

    run(main())


def test_long_orders_have_their_time_and_those_behind_them_too() -> None:
    async def main() -> None:
        host = Site().host()
        await host.start()
        orders = [host.order("work", 18.0, expected_s=20.0) for _ in range(3)]
        assert await asyncio.gather(*orders, host.call("work", 0.1)) == [0, 0, 0, 0]
        with pytest.raises(HostStalled):
            await host.order("work", 6.0, expected_s=0.0)

    run(main())


def test_what_a_worker_raises_is_an_answer() -> None:
    async def main() -> None:
        site = Site()
        host = site.host()
        await host.start()
        with pytest.raises(Refused):
            await host.order("refuse", expected_s=0.0)
        assert await host.order("work", 0.1, expected_s=0.0) == 0

    run(main())


def test_one_that_dies_again_and_again_waits_longer_and_longer_but_not_for_ever() -> None:
    async def main() -> None:
        site = Site(dies=lambda number: number < 9)
        host = site.host(gives_up=False)
        await host.start()
        while True:
            try:
                assert await host.order("work", 0.0, expected_s=0.0) == 9
                break
            except HostLost:
                await host.recover()
        assert site.pauses_s[:4] == pytest.approx([0.0, 0.5, 1.0, 2.0])
        assert max(site.pauses_s) == pytest.approx(LONGEST_PAUSE_S)
        await asyncio.sleep(STEADY_S)
        site.lives[-1].kill()
        with pytest.raises(HostLost):
            await host.order("work", 0.0, expected_s=0.0)
        await host.recover()
        assert site.pauses_s[-1] == pytest.approx(STEADY_S), "one that was steady need not wait"

    run(main())


@pytest.mark.parametrize(
    "site",
    [
        Site(fails=lambda number: number > 0),
        Site(dies=lambda number: True),
        Site(start_s=61.0),
    ],
    ids=["no start succeeds", "no life answers", "starts hang"],
)
def test_recovery_has_a_bound_that_only_an_answer_resets(site: Site) -> None:
    async def main() -> None:
        host = site.host()
        await host.start()
        for life in site.lives:
            life.kill()
        lost = now()

        async def serve_for_ever() -> None:
            while True:
                with pytest.raises(HostLost):
                    await host.order("work", 0.0, expected_s=0.0)
                await host.recover()

        with pytest.raises(HostLost, match=r"it did not come back within 60\.0 s"):
            await serve_for_ever()
        assert 59.0 <= now() - lost <= 60.0 + site.start_s
        assert not any(life.alive for life in site.lives[:-1])

    run(main())


def test_a_lane_is_tried_for_as_long_as_it_takes() -> None:
    async def main() -> None:
        site = Site(fails=lambda number: 0 < number < 200)
        host = site.host(gives_up=False)
        await host.start()
        site.lives[0].kill()
        with pytest.raises(HostLost):
            await host.order("work", 0.0, expected_s=0.0)
        await host.recover()
        assert now() > 1000
        assert await host.order("work", 0.0, expected_s=0.0) == 200

    run(main())


def test_who_finds_out_about_one_death_starts_one_life() -> None:
    async def main() -> None:
        site = Site()
        host = site.host()
        await host.start()
        site.lives[0].kill()

        async def work() -> int:
            with pytest.raises(HostLost):
                await host.order("work", 0.0, expected_s=0.0)
            await host.recover()
            answer: int = await host.order("work", 0.0, expected_s=0.0)
            return answer

        assert await asyncio.gather(*(work() for _ in range(4))) == [1] * 4
        assert len(site.began_s) == 2

    run(main())


def test_a_host_that_is_closed_does_not_come_back() -> None:
    async def main() -> None:
        site = Site(start_s=10.0)
        host = site.host(gives_up=False)
        await host.start()
        site.lives[0].kill()
        with pytest.raises(HostLost):
            await host.order("work", 0.0, expected_s=0.0)
        recovering = asyncio.create_task(host.recover())
        await asyncio.sleep(5)
        host.close()
        await recovering
        assert [life.alive for life in site.lives] == [False, False]

    run(main())
