"""Runs cells, on as many processes as are given, and keeps what was measured."""

import multiprocessing
from collections.abc import Collection, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.papers.cells import Cell
from benchmarks.papers.metrics import ENDS, METRICS, Run
from benchmarks.papers.setup import experiment
from benchmarks.papers.watch import Watch
from benchmarks.simulator.run import simulate
from engine.errors import SpindleError

Measured = Mapping[Cell, Mapping[str, float]]
"""By metric."""


def measure(cell: Cell, traces: Path) -> dict[str, float]:
    """All metrics of the cell's paper. The same cell gives the same numbers, but for CPU time."""
    ready = experiment(cell, traces)
    horizon_s, answers = ENDS.get(str(cell.at["workload"]), (None, 0))
    watch = Watch(horizon_s, answers, keep_rounds=cell.paper == "laps_sd")
    try:
        report = simulate(
            ready.requests,
            ready.cluster,
            lambda calibrations: ready.policies(calibrations, watch),
            ready.limits,
            clients=ready.clients,
            pipeline=ready.pipeline,
            seed=cell.seed,
            observe=watch.observe,
        )
    except SpindleError:
        # The coordinator stops because its observer has seen enough.
        if not watch.ended:
            raise
        return METRICS[cell.paper](Run(ready, None, watch))
    return METRICS[cell.paper](Run(ready, report, watch))


def measure_all(cells: Collection[Cell], traces: Path, pool: Executor) -> Measured:
    return dict(zip(cells, pool.map(partial(measure, traces=traces), cells), strict=True))


def processes(count: int) -> ProcessPoolExecutor:
    """Fresh ones: cells share nothing."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
