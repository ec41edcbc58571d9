"""A cell is one run: an arm in a case with a seed. Rows of several figures may share it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from lab.papers.row import Scalar
from lab.papers.settings import Paper, load
from policies.scheduling.laps_sd import LapsSdParams

READ_BY_METRIC = ("window",)
"""Axes that change only which metric is read, not the run."""
ORACLES = {"srpt": "default"}
"""Oracles, which no file lists; each equals this arm in all else."""


@dataclass(frozen=True, slots=True)
class Cell:
    paper: str
    arm: str
    case: tuple[tuple[str, Scalar], ...]
    seed: int = 0

    @property
    def at(self) -> dict[str, Scalar]:
        return dict(self.case)


def cell(paper: str, arm: str, case: Mapping[str, Scalar], seed: int = 0) -> Cell:
    """Without the axes that do not change the run, so that rows share cells."""
    of = settings(paper)
    relevant = {axis: at for axis, at in case.items() if _changes_run(of, arm, axis, at, case)}
    return Cell(paper, _first_equal(paper, arm), tuple(sorted(relevant.items())), seed)


@cache
def settings(paper: str) -> Paper:
    return load(paper)


@cache
def _first_equal(paper: str, arm: str) -> str:
    """The first arm with the same run. Arms that differ in `attention` only are equal where no
    machine's time depends on padding."""
    arms, machines = settings(paper).arms, settings(paper).machines.values()
    if arm in ORACLES:
        return arm
    same: dict[str, object] = {"source": arms[arm].source}
    if not any(machine.verify and machine.verify.padded_row_s for machine in machines):
        same["attention"] = arms[arm].attention
    return next(name for name, other in arms.items() if other.model_copy(update=same) == arms[arm])


def _changes_run(paper: Paper, arm: str, axis: str, at: Scalar, case: Mapping[str, Scalar]) -> bool:
    of = paper.arms[ORACLES.get(arm, arm)]
    match axis:
        case "parts":
            # Where the number is fixed; Spin's heuristic chooses its own.
            return of.pipeline.parts is not None
        case "queues":
            return of.schedule.name == "laps_sd" and at != LapsSdParams().queues
        case "slo_scale":
            slos = paper.workloads[str(case["workload"])].slo.values()
            multiples = [slo.tpot_idle_multiple for slo in slos if slo.tpot_idle_multiple]
            return at != (multiples[0] if multiples else 1.0)
        case _:
            return axis not in READ_BY_METRIC
