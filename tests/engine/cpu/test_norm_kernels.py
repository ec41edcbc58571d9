"""Loops give the same bits where they are compiled as where they are read from the cache.

It takes 20 s of compiling: replicas of one application differ in this, and a stream that goes over
from one to the other would differ as well.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from numba.core.cpu_options import FastMathOptions
from numba.core.dispatcher import Dispatcher

from engine.attention import walk
from engine.cpu import fast_math, norm_kernels, quantized_steps, thread_team

ROOT = Path(__file__).parents[3]
STEP = """
import hashlib, numpy as np
from engine.cpu.quantized_forward import Shape, _rows
from engine.cpu.quantized_steps import _add_and_norm
random = np.random.default_rng(0)
def numbers(*size):
    return random.normal(size=size).astype(np.float32)
shape = Shape(1, 576, 9, 3, 64, 1536, 64)
rows = _rows(shape, numbers(8, 576), numbers(8, 64), numbers(8, 64), np.arange(8))
_add_and_norm(0, 8, rows, numbers(576), 1e-5)
compiled = sum(_add_and_norm.stats.cache_misses.values())
print(hashlib.md5(rows.normed.tobytes()).hexdigest(), compiled)
"""


def step(cache: Path) -> tuple[str, int]:
    """What the norm of a layer gives, and how many loops were compiled for it."""
    done = subprocess.run(
        [sys.executable, "-c", STEP],
        cwd=ROOT,
        env={**os.environ, "SPINDLE_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    digest, compiled = done.stdout.split()
    return digest, int(compiled)


def test_compiled_and_cached_norms_give_the_same_bits(tmp_path: Path) -> None:
    first, compiled = step(tmp_path)
    assert compiled == 1
    assert step(tmp_path) == (first, 0)


@pytest.mark.parametrize("module", [walk, fast_math, norm_kernels, quantized_steps, thread_team])
def test_no_loop_of_a_forward_leaves_rounding_to_the_compiler(module: ModuleType) -> None:
    loops = [one for one in vars(module).values() if isinstance(one, Dispatcher)]
    assert loops
    for one in loops:
        flags = FastMathOptions(one.targetoptions.get("fastmath", False)).flags
        assert flags <= {"nnan", "nsz"}, one
