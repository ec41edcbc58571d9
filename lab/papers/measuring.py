"""Runs cells in parallel processes and measures their metrics."""

import multiprocessing
from collections.abc import Collection, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path

from cluster.plan.simulator.run import simulate
from engine.errors import SpindleError
from lab.papers.cells import Cell
from lab.papers.experiment import build_experiment
from lab.papers.metrics import ENDS, METRICS, Run
from lab.papers.run_observer import RunObserver

Measured = Mapping[Cell, Mapping[str, float]]
"""By metric."""


def measure(cell: Cell, traces: Path) -> dict[str, float]:
    """All metrics of the cell's paper. A cell always gives the same numbers, but for CPU time."""
    experiment = build_experiment(cell, traces)
    horizon_s, finished = ENDS.get(str(cell.at["workload"]), (None, 0))
    observer = RunObserver(horizon_s, finished, keep_rounds=cell.paper == "laps_sd")
    try:
        report = simulate(
            experiment.requests,
            experiment.cluster,
            lambda calibrations: experiment.policies(calibrations, observer),
            experiment.limits,
            clients=experiment.clients,
            pipeline=experiment.pipeline,
            seed=cell.seed,
            observe=observer.observe,
        )
    except SpindleError:
        # The observer has ended the run by raising in the coordinator.
        if not observer.ended:
            raise
        return METRICS[cell.paper](Run(experiment, None, observer))
    return METRICS[cell.paper](Run(experiment, report, observer))


def measure_all(cells: Collection[Cell], traces: Path, pool: Executor) -> Measured:
    return dict(zip(cells, pool.map(partial(measure, traces=traces), cells), strict=True))


def processes(count: int) -> ProcessPoolExecutor:
    """New ones: they share nothing with this one."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
