"""SpecServe's offline analyzer: measures the cost of a model's forward on this device.

Measures a grid of batch shapes on the real model, fits the cost models of `policies/cost.py`, and
stores the measurements in a file, so that later starts need not measure again.
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median_low
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
import torch
from transformers import PreTrainedConfig

from cluster.cache import written_whole
from engine.cpu.row_counts import row_cost_step
from engine.cpu.threads import most_threads, waiting_meter
from engine.model import PackedModel, Segment
from policies.cost import (
    ForwardCost,
    ForwardSample,
    fit_roofline,
    token_budget,
)

_LOG = logging.getLogger("spindle")

FORMAT = 5
"""Format version of the cache file; increased when what is measured, or how, changes."""
WARM_UP_ROUNDS = 1
_LEAST_ROUNDS = 3
"""Shapes are added only while the time allows this many rounds, including the warm-up."""
MOST_WAITING = 0.3
"""Time in which threads wait for a processor, per time: more is beside other work."""
_LEAST_SHAPES = 4
"""At least as many shapes as a fit has parameters."""
NO_TOKEN = -1
"""Placeholder for committed tokens of measured requests, whose KV rows were never computed. No real
request has this token, so the prefix cache never returns these rows."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Batch shapes to measure: all combinations of these axes. Within a shape, all requests are
    equal."""

    requests: tuple[int, ...] = (1, 4, 16)
    rows: tuple[int, ...] = (1, 2, 4, 8)
    """New tokens per request."""
    context: tuple[int, ...] = (32, 128, 512)
    """Committed tokens per request."""
    rounds: int = 7
    """Times that each shape is measured, alternating with the others; the median counts."""
    seconds: float = math.inf
    """Time for all measurements. If it is too short, only the outermost shapes are measured, fewer
    times, and the fit interpolates."""


class Measured(Protocol):
    """What a key says of a model or a head."""

    @property
    def config(self) -> PreTrainedConfig: ...

    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """Everything that a measurement depends on; a different key is a different profile."""

    model: str
    setup: str
    device: str
    dtype: str
    threads: int
    grid: Grid
    step: tuple[int, int]
    """The device's cost step: a forward of more tokens than the first number takes at least as long
    as one of the second."""

    @classmethod
    def of(cls, model: Measured, device: torch.device, setup: str, grid: Grid) -> "ProfileKey":
        """`setup` names everything else that affects the model's speed: attention layout,
        prepacked weights, tensor-parallel size."""
        config = model.config.to_json_string(use_diff=False)
        return cls(
            model=f"{model.config.model_type}-{digest(config)}",
            setup=setup,
            device=device_name(device),
            dtype=str(model.dtype),
            threads=most_threads(),
            grid=grid,
            step=row_cost_step(device, model.dtype),
        )


@dataclass(frozen=True, slots=True)
class Profile:
    key: ProfileKey
    samples: tuple[ForwardSample, ...]
    roofline: ForwardCost

    @classmethod
    def fit(cls, key: ProfileKey, samples: tuple[ForwardSample, ...]) -> "Profile":
        step_from, step_to = key.step
        return cls(key, samples, fit_roofline(samples, step_from, step_to))

    @property
    def token_budget(self) -> int:
        """AdaServe's B_1; B_2 is in a drafter's own profile (engine/draft_profile.py)."""
        return token_budget(self.roofline, max(sample.tokens for sample in self.samples))


def profile(model: PackedModel, setup: str, cache_dir: Path, grid: Grid | None = None) -> Profile:
    """The model's profile, from the cache if it has been measured before.

    `setup`: as in ProfileKey.of. Shapes that do not fit into the model's context or KV pool are
    left out. Measure while nothing else runs on the device and the KV pool has no requests.
    """
    key = ProfileKey.of(model.hf_model, model.device, setup, grid or Grid())
    return cached_profile(key, cache_dir, partial(measure, model))


def cached_profile(
    key: ProfileKey, cache_dir: Path, measure_grid: Callable[[Grid], tuple[ForwardSample, ...]]
) -> Profile:
    return Profile.fit(key, cached_samples(key, cache_dir, partial(measure_grid, key.grid)))


def cached_samples(
    key: ProfileKey, cache_dir: Path, measure_samples: Callable[[], tuple[ForwardSample, ...]]
) -> tuple[ForwardSample, ...]:
    """Those in the file of this key, or new ones. What was measured beside other work is measured
    again once the machine is quiet; costs are also learned again while serving
    (policies/estimates/online_cost.py)."""
    described = json.dumps({"format": FORMAT, **asdict(key)}, sort_keys=True)
    path = cache_dir / f"{digest(described)}.json"
    try:
        stored = json.loads(path.read_text())
        samples = tuple(ForwardSample(**one) for one in stored["samples"])
        if stored["waiting"] > MOST_WAITING and os.getloadavg()[0] < (os.cpu_count() or 1):
            samples = ()
    except FileNotFoundError:
        samples = ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        _LOG.warning("%s cannot be read (%r): measuring again", path, error)
        samples = ()
    if samples:
        return samples
    waiting = waiting_meter()
    samples = measure_samples()
    content = {
        "key": json.loads(described),
        "samples": [asdict(one) for one in samples],
        "waiting": waiting(),
    }
    try:
        with written_whole(path) as file:
            file.write_text(json.dumps(content, indent=1))
    except OSError as error:
        _LOG.warning("what was measured cannot be kept in %s: %s", path, error)
    return samples


def measure(model: PackedModel, grid: Grid) -> tuple[ForwardSample, ...]:
    shapes = [shape for shape in shapes_of(grid) if _fits(model, shape)]
    return measure_alternately(shapes, grid, lambda shape, rng: _time_forward(model, shape, rng))


def measure_alternately(
    shapes: Sequence["Shape"],
    grid: Grid,
    time_forward: Callable[["Shape", np.random.Generator], float],
    clock: Callable[[], float] = perf_counter,
) -> tuple[ForwardSample, ...]:
    """Measures the shapes alternately, so that a disturbance of the machine affects single samples
    of many shapes, which the median drops; of two samples the shorter counts. `shapes`: those of
    the grid that can be measured."""
    if not shapes:
        raise ValueError("the model's context or KV pool is too small for every shape of the grid")
    rng = np.random.default_rng(0)
    begun = clock()
    seconds: dict[Shape, list[float]] = {}
    per_token = 0.0
    for shape in sorted(shapes, key=partial(_order, grid)):
        shape_begun = clock()
        expected = shape_begun - begun + per_token * shape.tokens
        if len(seconds) >= _LEAST_SHAPES and expected > grid.seconds / _LEAST_ROUNDS:
            continue
        for _ in range(WARM_UP_ROUNDS):
            time_forward(shape, rng)
        per_token = (clock() - shape_begun) / shape.tokens
        seconds[shape] = []
    chosen = list(seconds)
    for _ in range(grid.rounds):
        round_begun = clock()
        for index in rng.permutation(len(chosen)):
            seconds[chosen[index]].append(time_forward(chosen[index], rng))
        now = clock()
        if now + (now - round_begun) - begun > grid.seconds:
            break
    return tuple(
        ForwardSample(
            context=shape.requests * shape.context,
            tokens=shape.tokens,
            seconds=median_low(times),
        )
        for shape, times in seconds.items()
    )


def _order(grid: Grid, shape: "Shape") -> tuple[bool, int, int, int]:
    """Sort key: the outermost shapes first, which determine a fit best, and among these the ones in
    which few axes are at their largest."""
    ends = [(min(axis), max(axis)) for axis in _axes(grid)]
    outermost = all(value in end for value, end in zip(shape, ends, strict=True))
    large = sum(value == end[1] for value, end in zip(shape, ends, strict=True))
    return not outermost, large, shape.tokens, shape.context


def _axes(grid: Grid) -> tuple[tuple[int, ...], ...]:
    return grid.requests, grid.rows, grid.context


class Shape(NamedTuple):
    requests: int
    rows: int
    context: int

    @property
    def tokens(self) -> int:
        return self.requests * self.rows


def shapes_of(grid: Grid) -> list[Shape]:
    return [Shape(*shape) for shape in product(*_axes(grid))]


def _fits(model: PackedModel, shape: Shape) -> bool:
    length = shape.context + shape.rows
    blocks = shape.requests * -(-length // model.kv.block_size)
    room = model.kv.free_blocks + model.kv.cached_blocks
    return length <= model.max_context and blocks <= room


def _time_forward(model: PackedModel, shape: Shape, rng: np.random.Generator) -> float:
    segments = [
        Segment(
            request=f"profile-{number}",
            tokens=rng.integers(model.vocab_size, size=shape.rows, dtype=np.int32),
            positions=np.arange(shape.context, shape.context + shape.rows, dtype=np.int32),
            mask=None,
            logits=np.arange(shape.rows, dtype=np.int32),
        )
        for number in range(shape.requests)
    ]
    for segment in segments:
        model.kv.open(segment.request, [])
        model.kv.reserve(segment.request, shape.context)
        model.kv.commit(segment.request, range(shape.context), [NO_TOKEN] * shape.context)
    wait_for(model.device)
    begin = perf_counter()
    model.forward(segments)
    wait_for(model.device)
    elapsed = perf_counter() - begin
    for segment in segments:
        model.kv.release(segment.request)
    return elapsed


def wait_for(device: torch.device) -> None:
    """Waits for kernels, which run asynchronously on an accelerator."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.backends.cpu.get_cpu_capability()} x{os.cpu_count()}"


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
