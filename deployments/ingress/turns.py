"""Work in threads for which clients take turns, so that none delays others by asking for much."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")

AT_ONCE = 4
"""Pieces of short work of one client that have a thread or wait for one; its others wait."""
_THREADS = 8


class Turns:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="turns")
        self._long = asyncio.Semaphore(1)
        self._clients: WeakValueDictionary[str, _ClientTurns] = WeakValueDictionary()
        """Those that have work; others are forgotten."""

    async def run(self, work: Callable[[], T], client: str, is_long: bool) -> T:
        """What the work returns. Long work is done one piece after the other, so that it leaves
        cores to the models and threads to short work; each client waits with one piece of it.

        Work whose caller is cancelled keeps its turn to its end: a thread cannot be stopped.
        """
        turns = self._clients.get(client) or _ClientTurns()
        self._clients[client] = turns
        gates = (turns.long, self._long) if is_long else (turns.short,)
        passed: list[asyncio.Semaphore] = []
        try:
            for gate in gates:
                await gate.acquire()
                passed.append(gate)
            running = self._threads.submit(work)
        except BaseException:
            _release(passed)
            raise
        loop = asyncio.get_running_loop()

        def give_back(_ended: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_release, passed, turns)

        running.add_done_callback(give_back)
        return await asyncio.wrap_future(running)


class _ClientTurns:
    def __init__(self) -> None:
        self.short = asyncio.Semaphore(AT_ONCE)
        self.long = asyncio.Semaphore(1)


def _release(gates: list[asyncio.Semaphore], _client: _ClientTurns | None = None) -> None:
    """`_client`: an argument only so that its entry, held weakly, lives as long as its turn."""
    for gate in gates:
        gate.release()
