"""Contenders that take turns, each in a process of its own."""

import multiprocessing
import time
from contextlib import closing
from functools import partial
from itertools import islice

import psutil
import pytest

from benchmarks.real.contenders import PLAIN
from benchmarks.real.contest import (
    Contender,
    heats,
)
from tests.benchmarks.real.scripted_server import MAX_TOKENS, ScriptedServer, scripted_requests

LOADS = (1, 2)
IN_A_ROUND = 24


def test_all_contenders_serve_the_same_requests_and_failures_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    others = {
        "drafting": partial(ScriptedServer, drafts=True),
        "dying": partial(ScriptedServer, batches=2),
        "missing": partial(ScriptedServer, error="/no/such/checkpoint"),
    }
    with closing(Contender(PLAIN, ScriptedServer)) as plain:
        results = heats(plain, others, scripted_requests(), LOADS, 1, lambda _: IN_A_ROUND)
    printed = capsys.readouterr().out
    assert "dying: not run: its process ended with 3" in printed
    assert "missing: not run:" in printed
    assert "/no/such/checkpoint" in printed
    assert set(results) == {*(("drafting", load) for load in LOADS), ("dying", LOADS[0])}
    lengths: list[int] = []
    for load in LOADS:
        (turn,) = results["drafting", load]
        assert turn.ours.lengths == turn.plain.lengths
        assert len(turn.ours.lengths) == IN_A_ROUND
        assert turn.ours.forwards < turn.plain.forwards
        lengths += turn.plain.lengths
    assert min(lengths) < max(lengths) == MAX_TOKENS, "outputs end where the target ends them"


def is_stopped(process: psutil.Process) -> bool:
    """Waits, for a signal takes some time to arrive."""
    end = time.monotonic() + 5.0
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < end:
        time.sleep(0.01)
    return bool(process.status() == psutil.STATUS_STOPPED)


def test_contenders_are_stopped_between_their_turns() -> None:
    with closing(Contender(PLAIN, ScriptedServer)) as plain:
        (process,) = multiprocessing.active_children()
        waiting = psutil.Process(process.pid)
        assert is_stopped(waiting)
        assert plain.serve(list(islice(scripted_requests(), 2)), clients=2) is not None
        assert is_stopped(waiting)
    assert not waiting.is_running()
