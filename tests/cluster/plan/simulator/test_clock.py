"""Virtual time is exact and in order, and a program that cannot continue is reported."""

import asyncio

import pytest

from cluster.plan.simulator import clock


async def test_hours_pass_immediately_and_exactly() -> None:
    await asyncio.sleep(3600.0)
    await asyncio.sleep(0.25)
    assert asyncio.get_running_loop().time() == 3600.25


async def test_tasks_interleave_by_their_timers_and_ties_by_their_order() -> None:
    async def ticks(name: str, every: float, seen: list[tuple[float, str]]) -> None:
        for _ in range(3):
            await asyncio.sleep(every)
            seen.append((asyncio.get_running_loop().time(), name))

    seen: list[tuple[float, str]] = []
    await asyncio.gather(*(ticks(n, s, seen) for n, s in (("a", 2.0), ("b", 3.0), ("c", 2.0))))
    assert seen == [
        (2.0, "a"),
        (2.0, "c"),
        (3.0, "b"),
        (4.0, "a"),
        (4.0, "c"),
        (6.0, "b"),
        (6.0, "a"),
        (6.0, "c"),
        (9.0, "b"),
    ]


def test_a_deadlock_lists_the_waiting_tasks() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(clock.Deadlock, match="waits_for_ever"):
        clock.run(waits_for_ever())
