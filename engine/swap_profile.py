"""Measures what a preemption costs whose KV moves to host memory and back (LAPS-SD's switch)."""

from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from engine.model import PackedModel
from engine.profiler import NO_TOKEN, Grid, ProfileKey, cached_samples, wait_for
from policies.cost import ForwardSample, SwitchCost, fit_linear

_LENGTHS = (64, 256, 1024)
"""Committed tokens of the requests that are swapped, as far as there is room."""
_ROUNDS = 5
_REQUEST = "profile-swap"


def swap_cost(model: PackedModel, setup: str, cache_dir: Path) -> SwitchCost:
    """From the cache if it has been measured before; `setup`: as in ProfileKey.of. The pool has no
    requests, and host memory to swap to."""
    room = min(model.kv.capacity, model.kv.swap_capacity, model.max_context)
    lengths = tuple(sorted({min(length, room) for length in _LENGTHS}))
    grid = Grid((1,), (1,), lengths, _ROUNDS)
    key = ProfileKey.of(model.hf_model, model.device, f"{setup}, KV swapped", grid)
    line = fit_linear(cached_samples(key, cache_dir, partial(_measure, model, lengths)))
    return SwitchCost(line.predict(0, 1), line.alpha)


def _measure(model: PackedModel, lengths: tuple[int, ...]) -> tuple[ForwardSample, ...]:
    return tuple(
        ForwardSample(length, 1, median(_seconds(model, length) for _ in range(_ROUNDS)))
        for length in lengths
    )


def _seconds(model: PackedModel, length: int) -> float:
    """The time of both ways: the way back would find the rows that are still in the pool, so the
    way to host memory counts twice."""
    kv = model.kv
    kv.open(_REQUEST, [])
    kv.reserve(_REQUEST, length)
    kv.commit(_REQUEST, range(length), [NO_TOKEN] * length)
    wait_for(model.device)
    begin = perf_counter()
    kv.swap_out(_REQUEST)
    wait_for(model.device)
    seconds = perf_counter() - begin
    kv.release(_REQUEST)
    return 2 * seconds
