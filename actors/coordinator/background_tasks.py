"""The tasks of one coordinator: a failure in any of them is heard of, and none outlives it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class Tasks:
    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._running: set[asyncio.Task[None]] = set()

    def spawn(
        self,
        work: Callable[[*Arguments], Coroutine[None, None, None]],
        *arguments: *Arguments,
    ) -> None:
        self._running.add(self._loop.create_task(self._guarded(work, *arguments)))

    async def end(self) -> None:
        """All but the one that calls it."""
        here = asyncio.current_task()
        tasks = [task for task in self._running if task is not here]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.difference_update(tasks)  # who had not begun takes no leave

    async def _guarded(
        self,
        work: Callable[[*Arguments], Coroutine[None, None, None]],
        *arguments: *Arguments,
    ) -> None:
        # Rather than by a callback when it is done, which takes one more turn of the loop.
        try:
            await work(*arguments)
        except Exception as error:
            self._failed(error)
        finally:
            self._running.difference_update((asyncio.current_task(),))
