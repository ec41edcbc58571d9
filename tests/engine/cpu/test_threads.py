"""Forwards on a CPU use the processors that are free, and not more."""

import subprocess
import sys

import pytest

from engine.cpu.threads import ThreadCount

WAITING = """
import os, subprocess, sys, time
from engine.cpu.threads import waited_s
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
before = waited_s()
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
end = time.monotonic() + 1.0
while time.monotonic() < end: pass
other.kill()
print(waited_s() - before)
"""


class Machine:
    """A machine with a clock, on which threads beyond those that have a processor wait."""

    def __init__(self, free: float) -> None:
        self.free = free
        self.now = self.waited = 0.0
        self.threads = ThreadCount(4, lambda: self.now, lambda: self.waited)

    def counts(self, seconds: float) -> list[int]:
        """The number of threads in each tenth of a second."""
        counts = []
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            self.waited += 0.1 * max(0.0, self.threads.count - self.free)
            counts.append(self.threads.update())
        return counts


def test_all_threads_compute_on_a_free_machine() -> None:
    assert set(Machine(free=4).counts(10)) == {4}


@pytest.mark.parametrize("free", [1, 2, 3])
def test_no_thread_computes_without_a_processor(free: int) -> None:
    counts = Machine(free).counts(60)
    assert counts[10] == free
    assert set(counts[10:]) == {free, free + 1}, "one more is tried at times"
    assert counts[10:].count(free) > 0.9 * len(counts[10:])


def test_threads_come_back_when_processors_are_free_again() -> None:
    machine = Machine(free=1)
    assert machine.counts(30)[-1] == 1
    machine.free = 4
    assert machine.counts(11)[-1] == 4


def test_one_thread_stays_however_busy_the_machine_is() -> None:
    assert min(Machine(free=0).counts(30)) == 1


def test_short_waits_cost_no_thread() -> None:
    assert set(Machine(free=3.8).counts(10)) == {4}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts how long threads wait")
def test_the_system_counts_how_long_threads_wait() -> None:
    """Two busy processes share one processor, so each waits half of the time."""
    waited = float(subprocess.check_output([sys.executable, "-c", WAITING], timeout=60))
    assert waited > 0.2
