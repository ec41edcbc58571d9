"""Virtual time for asyncio: when everything waits, the clock jumps to the next timer.

Whatever runs on it sees `loop.time()` alone, so hours pass in seconds and the same program does
the same things in the same order, every time. Nothing outside the loop (a thread, a socket, a
subprocess) can wake it.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_SHOWN = 8
"""Waiting tasks that a Deadlock names."""


class Deadlock(Exception):
    """Everything waits and no timer is set: nothing will ever happen again."""


class _JumpingSelector(selectors.SelectSelector):
    """Waits by moving its clock; looks at no file."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("everything waits and no timer is set, for one in:\n" + _waiting())
        self.now_s += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at 0 seconds."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def spend(self, seconds: float) -> None:
        """The code that runs takes so long itself, and whatever else is due waits for it."""
        self._virtual.now_s += seconds


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """asyncio.run in virtual time. Raises Deadlock where real time would wait for ever."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def spend(seconds: float) -> None:
    """Of the running loop; in real time code takes its time by itself."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.spend(seconds)


def _waiting() -> str:
    loop = asyncio.get_running_loop()
    tasks = sorted(map(repr, asyncio.all_tasks(loop)))
    return "\n".join(tasks[:_SHOWN])
