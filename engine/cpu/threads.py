"""How many threads compute a forward on a CPU: fewer while other processes want the processors.

A forward of a small model has hundreds of parallel regions, and waking a thread that sleeps between
them takes as long as many a product; so threads spin there (environment.py). But where processes
share processors, a thread that spins takes the time of one that computes, and one thread alone is
faster than two.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

_WINDOW_S = 0.5
"""Waiting is judged over this time, and no sooner than this after the number has changed."""
_MOST_WAITING = 0.5
"""Time in which threads wait for a processor, per time: more means that there are too many. For two
threads on two processors it is 0.7 beside a busy process, 0.4 beside Serve's proxy and a client."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 8.0
"""Before another thread is tried; doubled each time that it had to wait as well."""
_TASKS = Path("/proc/self/task")


def waited_s() -> float:
    """How long the threads of this process have been ready to run but without a processor; 0 where
    the system does not say."""
    waited_ns = 0
    with suppress(OSError):
        for task in os.scandir(_TASKS):
            with suppress(OSError, IndexError):  # the thread has ended, or nothing is counted
                waited_ns += int(Path(task.path, "schedstat").read_bytes().split()[1])
    return waited_ns / 1e9


def waiting_meter() -> Callable[[], float]:
    """Asked later, it says for how long threads have waited since, per time."""
    began, before = time.monotonic(), waited_s()
    return lambda: (waited_s() - before) / (time.monotonic() - began)


class ThreadCount:
    """The number of threads for the next forward: `most`, less those that would have to wait for a
    processor."""

    def __init__(
        self,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        waited_s: Callable[[], float] = waited_s,
    ) -> None:
        self.most = self.count = most
        self._clock = clock
        self._waited_s = waited_s
        self._since, self._waited_before = clock(), waited_s()
        self._pause_s = _FIRST_PAUSE_S
        self._next_try = 0.0
        self._trying = False

    def update(self) -> int:
        now = self._clock()
        if self.most == 1 or now < self._since + _WINDOW_S:
            return self.count
        waited = self._waited_s()
        # A thread that has ended takes its time with it.
        waiting = max(0.0, waited - self._waited_before) / (now - self._since)
        self._since, self._waited_before = now, waited
        crowded = waiting > _MOST_WAITING
        if crowded and self.count > 1:
            failed = self._trying
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S) if failed else _FIRST_PAUSE_S
            self._next_try = now + self._pause_s
            self.count = max(1, self.count - math.ceil(waiting - _MOST_WAITING))
        self._trying = not crowded and self.count < self.most and now >= self._next_try
        self.count += self._trying
        return self.count


_process: ThreadCount | None = None


def set_threads(most: int) -> None:
    """Forwards of this process use at most this number of threads."""
    global _process
    torch.set_num_threads(most)
    _process = ThreadCount(most)


def most_threads() -> int:
    return _process.most if _process else torch.get_num_threads()


def use_free_processors() -> None:
    """Before a forward, in the thread that computes it."""
    if _process and _process.update() != torch.get_num_threads():
        torch.set_num_threads(_process.count)
