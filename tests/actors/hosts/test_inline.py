"""A model in the coordinator's process that hangs is noticed."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from actors.hosts.inline import WorkerThread
from actors.hosts.protocol import HostLost

STALLED_S = 0.1


class Worker:
    def __init__(self) -> None:
        self.released = threading.Event()

    def draft(self, number: int) -> int:
        self.released.wait()
        return number + 1


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.released.set()


def test_a_worker_that_hangs_is_lost_for_good(worker: Worker) -> None:
    async def lose() -> None:
        thread = WorkerThread("verifier", worker, STALLED_S)
        with pytest.raises(HostLost, match=r"verifier gave no answer for 0\.2 s"):
            await thread.order("draft", 1, expected_s=0.0)
        with pytest.raises(HostLost, match="fails or hangs"):
            await thread.recover()

    asyncio.run(lose())


def test_an_order_may_take_what_it_is_expected_to(worker: Worker) -> None:
    async def wait() -> int:
        thread = WorkerThread("verifier", worker, STALLED_S)
        order = asyncio.ensure_future(thread.order("draft", 1, expected_s=30.0))
        await asyncio.sleep(5 * STALLED_S)
        worker.released.set()
        return int(await order)

    assert asyncio.run(wait()) == 2
