"""Computes a row's value from measured cells, and its status."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, geometric_mean

from benchmarks.report import Record
from lab.papers.cells import READ_BY_METRIC, Cell, cell, settings
from lab.papers.row import BEST, Row, Scalar

Case = Mapping[str, Scalar]
ReadMetric = Callable[[str, Case], float]
"""The row's metric of an arm in a case, mean over the seeds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row and its measured value."""

    row: Row
    value: float

    @property
    def status(self) -> str:
        holds = self.row.reproduced(self.value)
        if self.row.template.standing is not None:
            return self.row.template.standing
        if holds is None:
            return "not specified by the paper"
        if holds:
            return "reproduced"
        return "missed"

    @property
    def record(self) -> Record:
        reference = self.row.template.printed
        ratio = self.value / reference if reference else None
        return Record(self.row.name, self.value, self.row.template.unit, reference, ratio)


def cells_of(paper: str, row: Row, first_seed: int = 0) -> set[Cell]:
    """All cells that its value is computed from. `first_seed`: of the row's runs, so that settings
    can be tuned on others than are reported."""
    cells: set[Cell] = set()

    def read(arm: str, case: Case) -> float:
        cells.update(_seeded(paper, row, arm, case, first_seed))
        return 1.0

    _value(paper, row, read)
    return cells


def evaluate(
    paper: str, row: Row, measured: Mapping[Cell, Mapping[str, float]], first_seed: int = 0
) -> Verdict:
    def read(arm: str, case: Case) -> float:
        metric = "/".join(
            [row.template.metric, *(str(case[axis]) for axis in READ_BY_METRIC if axis in case)]
        )
        cells = _seeded(paper, row, arm, case, first_seed)
        return fmean(measured[seeded][metric] for seeded in cells)

    return Verdict(row, _value(paper, row, read))


def _seeded(paper: str, row: Row, arm: str, case: Case, first: int) -> list[Cell]:
    seeds = settings(paper).figures[row.figure].seeds
    return [cell(paper, arm, case, seed) for seed in range(first, first + seeds)]


def _value(paper: str, row: Row, read: ReadMetric) -> float:
    claim = row.template
    points = [dict(zip(row.sweep, point, strict=True)) for point in product(*row.sweep.values())]
    values = [_at_point(paper, row, {**row.case, **point}, read) for point in points]
    match claim.value:
        case "share_above":
            return fmean(ratio > 1 for ratio in values)
        case "share_below":
            return fmean(ratio < 1 for ratio in values)
    match claim.reduce:
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "argmin" | "argmax":
            extreme = min(values) if claim.reduce == "argmin" else max(values)
            (axis,) = claim.across
            return float(points[values.index(extreme)][axis])
        case "mean":
            return _mean(values, claim.value == "ratio")
    (only,) = values
    return only


def _mean(values: Sequence[float], ratios: bool) -> float:
    if not ratios:
        return fmean(values)
    return geometric_mean(values) if min(values) > 0 else 0.0


def _at_point(paper: str, row: Row, case: Case, read: ReadMetric) -> float:
    claim = row.template
    ours = read(claim.of, case)
    if claim.value == "plain":
        return ours
    others = [read(arm, other) for arm in claim.against for other in _other_cases(paper, row, case)]
    better = settings(paper).metrics[claim.metric].better
    if len(others) > 1 and better is None:
        raise ValueError(f"{row.name}: metrics.{claim.metric} does not name its `better` side")
    theirs = min(others) if better == "lower" else max(others)
    if claim.value == "difference":
        return ours - theirs
    if theirs == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / theirs


def _other_cases(paper: str, row: Row, case: Case) -> Iterator[Case]:
    """The other side's case, or one for each value of an axis of which the best counts."""
    changed = row.template.against_case
    over = settings(paper).figures[row.figure].over
    axes = {axis: over[axis] if value == BEST else (value,) for axis, value in changed.items()}
    for values in product(*axes.values()):
        yield {**case, **dict(zip(axes, values, strict=True))}
