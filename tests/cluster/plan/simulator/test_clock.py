"""Virtual time is exact and in order, and a program that cannot continue is reported."""

import asyncio

import pytest

from cluster.plan.simulator import clock


async def test_hours_pass_immediately_and_exactly() -> None:
    await asyncio.sleep(3600.0)
    await asyncio.sleep(0.25)
    assert asyncio.get_running_loop().time() == 3600.25


def test_a_deadlock_lists_the_waiting_tasks() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(clock.Deadlock, match="waits_for_ever"):
        clock.run(waits_for_ever())
