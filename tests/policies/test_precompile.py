"""After the warm-up no loop is compiled any more, so that no request waits for it."""

import subprocess
import sys

ROUNDS = """
import cluster  # sets where compiled loops are cached, as in every process of Spindle
import gc
from numba.core.dispatcher import Dispatcher
from policies.precompile import warm_up

warm_up()
# Numba has compiled functions of its own, some with the same names.
loops = [one for one in gc.get_objects() if isinstance(one, Dispatcher)
         and one.py_func.__module__.startswith("policies.")]
assert len(loops) > 10
compiled = {one: len(one.signatures) for one in loops}

from policies.estimates.calibration import Calibration
from policies.selection.hedge import Hedge
from policies.speculation.planner.policy import Planner
from tests.policies.selection import play as selections
from tests.policies.speculation.play import play
from tests.policies.speculation.rounds import round_context, view

play(Planner(None, {"lane": Calibration()}), [view("a"), view("b", tpot_s=0.001)],
     0.8, round_context(), rounds=5)
hedge, lanes = Hedge(), [selections.lane("x"), selections.lane("y")]
context = selections.round_context(lanes)
for _ in range(3):
    here = selections.requests("a", "b")
    selections.slot(hedge, here, lanes, lambda request, lane: 50.0, context=context)
    context.acceptance.observe_read("a", "x", [True, False], [False, False])
    context.acceptance.observe_miss(["a"], "y")
    hedge.likely_next("a")
print({one.py_func.__qualname__ for one in loops if len(one.signatures) > compiled[one]})
"""


def test_rounds_after_the_warm_up_compile_nothing() -> None:
    """In a new process, because this one has compiled loops already."""
    ran = subprocess.run(
        [sys.executable, "-c", ROUNDS], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout.strip() == "set()", ran.stdout + ran.stderr
