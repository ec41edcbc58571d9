"""Virtual time for asyncio: when all tasks wait, the clock jumps to the next timer.

Code on the loop uses only `loop.time()`, so hours pass in seconds, and the same program does the
same in the same order every time. Nothing outside the loop (a thread, a socket, a subprocess) can
wake it.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_SHOWN = 8
"""Waiting tasks that a Deadlock lists."""


class Deadlock(Exception):
    """All tasks wait and no timer is set, so none can ever continue."""


class _JumpingSelector(selectors.SelectSelector):
    """Waits by advancing its clock; no file is ever ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("all tasks wait and no timer is set, among them:\n" + _waiting())
        self.now_s += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its time starts at 0."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """asyncio.run in virtual time. Raises Deadlock where asyncio.run would wait for ever."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def _waiting() -> str:
    loop = asyncio.get_running_loop()
    tasks = sorted(map(repr, asyncio.all_tasks(loop)))
    return "\n".join(tasks[:_SHOWN])
