"""The tasks of one coordinator: a failure in any of them is reported, and none outlives it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class Tasks:
    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._running: set[asyncio.Task[None]] = set()

    def spawn(
        self,
        work: Callable[[*Arguments], Coroutine[None, None, None]],
        *arguments: *Arguments,
    ) -> None:
        self._running.add(self._loop.create_task(self._guarded(work, *arguments)))

    async def end(self) -> None:
        """Cancels all tasks but the one that calls it."""
        current = asyncio.current_task()
        tasks = [task for task in self._running if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.difference_update(tasks)  # a task that never ran does not remove itself

    async def _guarded(
        self,
        work: Callable[[*Arguments], Coroutine[None, None, None]],
        *arguments: *Arguments,
    ) -> None:
        # A done callback would take one more turn of the event loop.
        try:
            await work(*arguments)
        except Exception as error:
            self._on_failure(error)
        finally:
            self._running.difference_update((asyncio.current_task(),))
