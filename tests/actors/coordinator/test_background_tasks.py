"""A coordinator's tasks: every failure is reported, and no task is left behind."""

import asyncio
import warnings

from actors.coordinator.background_tasks import Tasks


async def wait_for_ever(started: list[str], name: str) -> None:
    started.append(name)
    await asyncio.Event().wait()


def test_end_cancels_all_tasks_started_or_not() -> None:
    failures: list[Exception] = []
    started: list[str] = []

    async def main() -> None:
        tasks = Tasks(failures.append)
        tasks.spawn(wait_for_ever, started, "first")
        await asyncio.sleep(0)
        tasks.spawn(wait_for_ever, started, "never started")
        await tasks.end()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning that a coroutine was never awaited is an error
        asyncio.run(main())
    assert started == ["first"]
    assert failures == []  # cancellation is no failure
