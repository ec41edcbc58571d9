"""Spin's Fig. 12 on the real engine: verifications of a built-in model, padded and decomposed.

The requests' lengths are the paper's datasets' in the simulator; each is somewhere in its answer,
with a root and four draft tokens to verify.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median

import numpy as np
import torch

from benchmarks.report import seconds
from cluster.built_in_models import TARGET, model_path
from engine.model import PackedModel, Segment
from lab.papers.arrivals import arrivals
from lab.papers.cells import Cell, settings
from lab.papers.layouts import LAYOUTS

MODEL = TARGET
METRICS = ("verify_latency", "peak_memory")
_ROWS = 5
"""The last committed token and four draft tokens."""
_BATCHES = 4
"""The most batches of each cell."""
_ROUNDS = 7
"""The first round warms up; layouts alternate, medians count."""
_NO_TRACES = Path()
_KV_TOKENS = 65_536


def measure_native(cells: Collection[Cell]) -> dict[Cell, dict[str, float]]:
    """Both metrics of each cell; cells that differ in their arm only are measured by turns."""
    by_case: dict[tuple[object, ...], list[Cell]] = {}
    for one in cells:
        by_case.setdefault((one.paper, one.case, one.seed), []).append(one)
    return {one: metrics for arms in by_case.values() for one, metrics in _compare(arms).items()}


def _compare(arms: Sequence[Cell]) -> dict[Cell, dict[str, float]]:
    model = _model()
    chosen = settings(arms[0].paper).arms
    layouts = {one: LAYOUTS[chosen[one.arm].attention] for one in arms}
    latency: dict[Cell, list[float]] = {one: [] for one in arms}
    memory: dict[Cell, list[float]] = {one: [] for one in arms}
    for batch in _batches(arms[0], model.max_context):
        segments = _open(model, batch)
        verify = partial(_verify, model, segments)
        times: dict[Cell, list[float]] = {one: [] for one in arms}
        for _ in range(_ROUNDS):
            for one, layout in layouts.items():
                model.plan = layout
                times[one].append(seconds(verify))
        for one, layout in layouts.items():
            model.plan = layout
            latency[one].append(median(times[one][1:]))
            memory[one].append(_peak_bytes(verify))
        for segment in segments:
            model.kv.release(segment.request)
    return {
        one: {"verify_latency": fmean(latency[one]), "peak_memory": max(memory[one])}
        for one in arms
    }


@cache
def _model() -> PackedModel:
    return PackedModel.load(
        model_path(MODEL), dtype=torch.float32, device="cpu", kv_tokens=_KV_TOKENS
    )


def _batches(of: Cell, max_context: int) -> list[list[int]]:
    """Committed tokens of the requests of each batch."""
    paper, case = settings(of.paper), of.at
    drawn = arrivals(paper, case, of.seed, idle_tpot_s=0.02, traces=_NO_TRACES)
    rng = np.random.default_rng([of.seed, 3])
    committed = [
        min(one.prompt_tokens + int(rng.integers(one.output_tokens + 1)), max_context - _ROWS)
        for one in drawn
    ]
    size = int(case["clients"])
    batches = [committed[first : first + size] for first in range(0, len(committed), size)]
    return batches[:_BATCHES]


def _open(model: PackedModel, committed: Sequence[int]) -> list[Segment]:
    rng = np.random.default_rng(0)
    segments = []
    for number, length in enumerate(committed):
        request = f"request-{number}"
        model.kv.open(request, [])
        model.kv.reserve(request, length)
        # Tokens of no vocabulary, so that no later request shares rows that were never computed.
        model.kv.commit(request, range(length), [-1] * length)
        segments.append(
            Segment(
                request,
                tokens=rng.integers(0, model.vocab_size, _ROWS, dtype=np.int32),
                positions=np.arange(length, length + _ROWS, dtype=np.int32),
                mask=None,
                logits=np.arange(_ROWS, dtype=np.int32),
            )
        )
    return segments


def _verify(model: PackedModel, segments: Sequence[Segment]) -> None:
    model.forward(segments)
    for segment in segments:
        model.kv.commit(segment.request, [], [])


def _peak_bytes(verify: partial[None]) -> float:
    """The most memory that torch has allocated at once beside what was there before."""
    with (
        _silent_stderr(),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profiled,
    ):
        verify()
    results = profiled.profiler.kineto_results
    changes = [
        (event.start_ns(), event.nbytes())
        for event in results.events()
        if event.name() == "[memory]"
    ]
    held = np.cumsum([size for _, size in sorted(changes, key=lambda change: change[0])])
    return float(held.max(initial=0))


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """The profiler's library writes two lines for every use, past Python."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
