"""Threads that share steps."""

import threading
import time

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from engine.cpu.thread_team import Counters, chunk_done, new_counters, next_chunk, wait_for

STEPS, CHUNKS = 300, 5


@njit(nogil=True)
def work(
    counters: Counters, taken: NDArray[np.int64], values: NDArray[np.int64], slow: bool
) -> None:
    """Each step's chunk adds up what all chunks of the step before have written."""
    for step in range(len(taken)):
        chunk = next_chunk(counters, step)
        while chunk < CHUNKS:
            taken[step, chunk] += 1
            total = np.int64(1)
            if step:
                for other in range(CHUNKS):
                    total += values[step - 1, other]
            for _ in range(20_000 if slow else 0):
                total = (total * 3) % 1_000_003
            values[step, chunk] = total % 1_000_003
            chunk_done(counters, step)
            chunk = next_chunk(counters, step)
        wait_for(counters, step, CHUNKS)


def results(threads: int, slow: bool, late_s: float = 0.0) -> NDArray[np.int64]:
    counters = new_counters(STEPS)
    taken, values = np.zeros((STEPS, CHUNKS), np.int64), np.zeros((STEPS, CHUNKS), np.int64)
    team = [
        threading.Thread(target=work, args=(counters, taken, values, slow)) for _ in range(threads)
    ]
    for thread in team:
        thread.start()
        time.sleep(late_s)
    for thread in team:
        thread.join()
    assert (taken == 1).all()
    return values


@pytest.mark.parametrize("slow", [False, True])
def test_a_step_begins_when_the_one_before_is_done(slow: bool) -> None:
    alone = results(1, slow)
    for threads in (2, 7):  # more than there are processors
        assert (results(threads, slow) == alone).all()


def test_a_thread_that_comes_late_holds_up_no_other() -> None:
    assert (results(2, slow=False, late_s=0.2) == results(1, slow=False)).all()
