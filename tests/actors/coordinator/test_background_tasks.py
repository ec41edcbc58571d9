"""A coordinator's tasks: no failure in silence, none left behind."""

import asyncio
import warnings

from actors.coordinator.background_tasks import Tasks


async def wait_for_ever(begun: list[str], name: str) -> None:
    begun.append(name)
    await asyncio.Event().wait()


def test_a_failure_is_heard_of_and_the_others_go_on() -> None:
    failures: list[str] = []
    begun: list[str] = []

    async def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        tasks = Tasks(lambda error: failures.append(str(error)))
        tasks.spawn(fail)
        tasks.spawn(wait_for_ever, begun, "other")
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 2  # the other one and this
        await tasks.end()

    asyncio.run(main())
    assert failures == ["broken"]
    assert begun == ["other"]


def test_none_outlives_the_end_begun_or_not() -> None:
    failures: list[Exception] = []
    begun: list[str] = []

    async def main() -> None:
        tasks = Tasks(failures.append)
        tasks.spawn(wait_for_ever, begun, "first")
        await asyncio.sleep(0)
        tasks.spawn(wait_for_ever, begun, "not begun")
        await tasks.end()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a coroutine that nobody has awaited
        asyncio.run(main())
    assert begun == ["first"]
    assert failures == []  # to be ended is none


def test_who_ends_them_from_among_them_goes_on() -> None:
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
