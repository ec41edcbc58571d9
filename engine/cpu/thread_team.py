"""Threads that share a sequence of steps without sleeping between them.

Each step is cut into chunks. A thread takes the next chunk of a step that no other has taken, and
goes on to the next step when all chunks of this one are done. So a thread that arrives late or
loses its processor holds up the others by one chunk at most, and one thread alone does everything.
"""

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Counters = NDArray[np.int64]
_CACHE_LINE = 8
"""In counters: those of two kinds share none."""
_SPINS = 2_000
"""Some 50 us, longer than most chunks. A thread that has waited this long lets others run."""
_HAS_PAUSE = platform.machine() in ("x86_64", "AMD64")


def new_counters(steps: int) -> Counters:
    """For so many steps, each of which is run once: chunks that are taken, chunks that are done and
    beside these whether one has failed."""
    return np.zeros((steps, 2, _CACHE_LINE), np.int64)


@njit(cache=True, nogil=True)
def next_chunk(counters: Counters, step: int) -> int:
    """A chunk that is now this thread's; there is none if it is not below the step's number."""
    return _add_one(counters[step, 0].ctypes.data)


@njit(cache=True, nogil=True)
def chunk_done(counters: Counters, step: int) -> None:
    _add_one(counters[step, 1].ctypes.data)


@njit(cache=True, nogil=True)
def chunk_failed(counters: Counters, step: int) -> None:
    """The chunk counts as done, so that no thread waits for it."""
    counters[step, 1, 1] = 1
    chunk_done(counters, step)


def any_failed(counters: Counters) -> bool:
    return bool(counters[:, 1, 1].any())


@njit(cache=True, nogil=True)
def wait_for(counters: Counters, step: int, chunks: int) -> None:
    """Until this number of chunks is done."""
    done = counters[step, 1].ctypes.data
    spins = 0
    while _read(done) < chunks:
        spins += 1
        if spins < _SPINS:
            _pause()
        else:
            _let_others_run()


@intrinsic
def _add_one(context: Any, address: Any) -> Any:
    """Adds one to the number at the address and returns what it was before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", number, ir.IntType(64)(1), "acq_rel")

    return types.int64(types.intp), generate


@intrinsic
def _read(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(number, "acquire", 8)

    return types.int64(types.intp), generate


@intrinsic
def _pause(context: Any) -> Any:
    """Tells the processor that this is a loop that waits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _HAS_PAUSE:
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _let_others_run(context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate
