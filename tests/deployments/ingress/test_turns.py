"""Clients take turns at threads."""

import asyncio
import threading

import pytest

from deployments.ingress.turns import AT_ONCE, Turns

pytestmark = pytest.mark.usefixtures("loop")


async def test_a_client_with_much_long_work_delays_another_by_one_piece() -> None:
    done: list[str] = []
    turns = Turns()
    many = [turns.run(lambda: done.append("many"), "many", is_long=True) for _ in range(20)]
    working = [asyncio.create_task(one) for one in many]
    await asyncio.sleep(0)
    await turns.run(lambda: done.append("one"), "one", is_long=True)
    await asyncio.gather(*working)
    assert done.index("one") <= 2
    assert len(done) == 21


async def test_short_work_of_one_client_leaves_threads_to_others() -> None:
    release = threading.Event()
    turns = Turns()
    blocking = [
        asyncio.create_task(turns.run(release.wait, "many", is_long=False))
        for _ in range(10 * AT_ONCE)
    ]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        assert await turns.run(lambda: 5, "one", is_long=False) == 5
    release.set()
    await asyncio.gather(*blocking)
    del blocking
    await asyncio.sleep(0.05)
    assert not turns._clients, "forgotten"
