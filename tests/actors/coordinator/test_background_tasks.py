"""A coordinator's tasks: every failure is reported, and no task is left behind."""

import asyncio
import warnings

from actors.coordinator.background_tasks import Tasks


async def wait_for_ever(started: list[str], name: str) -> None:
    started.append(name)
    await asyncio.Event().wait()


def test_a_failure_is_reported_and_the_other_tasks_continue() -> None:
    failures: list[str] = []
    started: list[str] = []

    async def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        tasks = Tasks(lambda error: failures.append(str(error)))
        tasks.spawn(fail)
        tasks.spawn(wait_for_ever, started, "other")
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 2  # the other one and this
        await tasks.end()

    asyncio.run(main())
    assert failures == ["broken"]
    assert started == ["other"]


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


def test_a_task_that_ends_all_tasks_continues_itself() -> None:
    failures: list[Exception] = []

    async def main() -> None:
        tasks, ended = Tasks(failures.append), asyncio.Event()

        async def last() -> None:
            await tasks.end()
            ended.set()

        tasks.spawn(last)
        async with asyncio.timeout(1):
            await ended.wait()

    asyncio.run(main())
    assert failures == []
