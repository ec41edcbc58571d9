"""Behind a warm-up nothing is compiled any more: no request waits for it."""

import subprocess
import sys

ROUNDS = """
import cluster  # as every process of ours has it: loops are kept where others find them
import gc
from numba.core.dispatcher import Dispatcher
from policies.precompile import warm_up

warm_up()
# Numba has loops of its own, some by the same names.
loops = [one for one in gc.get_objects() if isinstance(one, Dispatcher)
         and one.py_func.__module__.startswith("policies.")]
assert len(loops) > 10
known = {one: len(one.signatures) for one in loops}

from policies.estimates.calibration import Calibration
from policies.selection.hedge import Hedge
from policies.speculation.planner.policy import Planner
from tests.policies.selection.play import lane, requests, slot
from tests.policies.speculation.play import play
from tests.policies.speculation.rounds import context, view

play(Planner(None, {"lane": Calibration()}), [view("a"), view("b", tpot_s=0.001)],
     lambda request, number: 0.8, context(), rounds=5)
hedge = Hedge()
for _ in range(3):
    slot(hedge, requests("a", "b"), [lane("x"), lane("y")], lambda request, lane: 50.0)
    hedge.likely_next("a")
print({one.py_func.__qualname__ for one in loops if len(one.signatures) > known[one]})
"""


def test_rounds_behind_a_warm_up_compile_nothing() -> None:
    """In a process of its own: this one has long been warm."""
    ran = subprocess.run(
        [sys.executable, "-c", ROUNDS], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout.strip() == "set()", ran.stdout + ran.stderr
