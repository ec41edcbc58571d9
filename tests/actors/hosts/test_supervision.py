"""Hosts that hang, die and recover, in virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from actors.hosts.protocol import HostLost
from actors.hosts.rpc_channel import WorkerFailed
from actors.hosts.supervision import LONGEST_PAUSE_S, MOST_FAILURES, STEADY_S, Supervised
from engine.errors import SpindleError


class Refused(SpindleError):
    """An error that the worker returns."""


@dataclass
class Worker:
    """One incarnation: answers one call after the other, each after `seconds`."""

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
class Launcher:
    """Launches incarnations; by number, some fail to start or die in their first call."""

    start_s: float = 1.0
    fails: Callable[[int], bool] = lambda number: False
    dies: Callable[[int], bool] = lambda number: False
    refuses: Callable[[int], bool] = lambda number: False
    launched_s: list[float] = field(default_factory=list)
    incarnations: list[Worker] = field(default_factory=list)

    async def launch(self, number: int) -> Worker:
        self.launched_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.start_s)
        if self.fails(number):
            raise HostLost("it died while it was loading")
        if self.refuses(number):
            raise WorkerFailed("out of memory")
        self.incarnations.append(Worker(number, self.dies(number)))
        return self.incarnations[-1]

    def host(self, *, gives_up: bool = True) -> Supervised:
        return Supervised("it", self.launch, stalled_s=5.0, recovery_s=60.0, gives_up=gives_up)

    @property
    def pauses_s(self) -> list[float]:
        """From the end of each start to the next launch."""
        return [later - earlier - self.start_s for earlier, later in pairwise(self.launched_s)]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_host_that_does_not_answer_is_killed_and_replaced() -> None:
    launcher = Launcher()
    host = launcher.host()
    await host.start()
    started = now()
    with pytest.raises(HostLost, match=r"no answer for 5\.0 s"):
        await host.order("work", 1000.0, expected_s=1.0)
    assert now() - started == pytest.approx(5.0)
    assert not launcher.incarnations[0].alive
    with pytest.raises(HostLost, match="it is down"):
        await host.order("work", 0.1, expected_s=1.0)
    await host.recover()
    assert await host.order("work", 0.1, expected_s=1.0) == 1


async def test_time_limits_grow_with_the_expected_time_of_all_orders_under_way() -> None:
    host = Launcher().host()
    await host.start()
    orders = [host.order("work", 18.0, expected_s=20.0) for _ in range(3)]
    assert await asyncio.gather(*orders, host.call("work", 0.1)) == [0, 0, 0, 0]
    with pytest.raises(HostLost):
        await host.order("work", 6.0, expected_s=0.0)


async def test_an_error_of_the_worker_is_no_loss() -> None:
    launcher = Launcher()
    host = launcher.host()
    await host.start()
    with pytest.raises(Refused):
        await host.order("refuse", expected_s=0.0)
    assert await host.order("work", 0.1, expected_s=0.0) == 0


async def test_pauses_before_restarts_double_up_to_a_limit() -> None:
    launcher = Launcher(dies=lambda number: number < 9)
    host = launcher.host(gives_up=False)
    await host.start()
    while True:
        try:
            assert await host.order("work", 0.0, expected_s=0.0) == 9
            break
        except HostLost:
            await host.recover()
    assert launcher.pauses_s[:4] == pytest.approx([0.0, 0.5, 1.0, 2.0])
    assert max(launcher.pauses_s) == pytest.approx(LONGEST_PAUSE_S)
    await asyncio.sleep(STEADY_S)
    launcher.incarnations[-1].kill()
    with pytest.raises(HostLost):
        await host.order("work", 0.0, expected_s=0.0)
    await host.recover()
    assert launcher.pauses_s[-1] == pytest.approx(STEADY_S), "a steady host is restarted at once"


@pytest.mark.parametrize(
    "launcher",
    [
        Launcher(fails=lambda number: number > 0),
        Launcher(dies=lambda number: True),
        Launcher(start_s=61.0),
    ],
    ids=["no start succeeds", "no incarnation answers", "starts hang"],
)
async def test_recovery_has_a_bound_that_only_an_answer_resets(launcher: Launcher) -> None:
    host = launcher.host()
    await host.start()
    for incarnation in launcher.incarnations:
        incarnation.kill()
    lost = now()

    async def serve_for_ever() -> None:
        while True:
            with pytest.raises(HostLost):
                await host.order("work", 0.0, expected_s=0.0)
            await host.recover()

    with pytest.raises(HostLost, match=r"it did not come back within 60\.0 s"):
        await serve_for_ever()
    assert 59.0 <= now() - lost <= 60.0 + launcher.start_s
    assert not any(incarnation.alive for incarnation in launcher.incarnations[:-1])


async def test_a_drafter_is_restarted_without_a_limit() -> None:
    launcher = Launcher(fails=lambda number: 0 < number < 200)
    host = launcher.host(gives_up=False)
    await host.start()
    launcher.incarnations[0].kill()
    with pytest.raises(HostLost):
        await host.order("work", 0.0, expected_s=0.0)
    await host.recover()
    assert now() > 1000
    assert await host.order("work", 0.0, expected_s=0.0) == 200


@pytest.mark.parametrize("failures", [MOST_FAILURES - 1, 100])
async def test_a_worker_that_fails_to_load_is_started_again_but_not_for_ever(failures: int) -> None:
    launcher = Launcher(refuses=lambda number: 0 < number <= failures)
    host = launcher.host(gives_up=False)
    await host.start()
    launcher.incarnations[0].kill()
    with pytest.raises(HostLost):
        await host.order("work", 0.0, expected_s=0.0)
    if failures < MOST_FAILURES:
        await host.recover()
    else:
        with pytest.raises(WorkerFailed):
            await host.recover()
        assert len(launcher.launched_s) == 1 + MOST_FAILURES


async def test_calls_that_find_the_same_loss_share_one_restart() -> None:
    launcher = Launcher()
    host = launcher.host()
    await host.start()
    launcher.incarnations[0].kill()

    async def work() -> int:
        with pytest.raises(HostLost):
            await host.order("work", 0.0, expected_s=0.0)
        await host.recover()
        answer: int = await host.order("work", 0.0, expected_s=0.0)
        return answer

    assert await asyncio.gather(*(work() for _ in range(4))) == [1] * 4
    assert len(launcher.launched_s) == 2
