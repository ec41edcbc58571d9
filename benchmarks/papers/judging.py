"""From measured cells to a row's value, and what may be said of it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, geometric_mean

from benchmarks.papers.bounds import is_bound
from benchmarks.papers.causes import cause_of
from benchmarks.papers.cells import READ_BY_METRIC, Cell, cell, settings
from benchmarks.papers.row import BEST, Row, Scalar
from benchmarks.report import Record

_NEAR = (1 / 1.1, 1.1)

Case = Mapping[str, Scalar]
Look = Callable[[str, Case], float]
"""The row's metric of an arm in a case, mean over the seeds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    row: Row
    value: float

    @property
    def status(self) -> str:
        holds = self.row.reproduced(self.value)
        if holds is None:
            return "not specified by the paper"
        if is_bound(self.row):
            return "kept" if holds else f"missed: {cause_of(self.row.name)}"
        return "reproduced" if holds else f"not reproduced: {cause_of(self.row.name)}"

    @property
    def record(self) -> Record:
        reference = self.row.template.printed
        ratio = self.value / reference if reference else None
        return Record(self.row.name, self.value, self.row.template.unit, reference, ratio)


def cells_of(paper: str, row: Row) -> set[Cell]:
    """All that its value needs, whatever it turns out to be."""
    asked: set[Cell] = set()

    def look(arm: str, case: Case) -> float:
        asked.update(_seeded(paper, row, arm, case))
        return 1.0

    _value(paper, row, look)
    return asked


def judge(paper: str, row: Row, measured: Mapping[Cell, Mapping[str, float]]) -> Verdict:
    def look(arm: str, case: Case) -> float:
        metric = "/".join(
            [row.template.metric, *(str(case[axis]) for axis in READ_BY_METRIC if axis in case)]
        )
        return fmean(measured[one][metric] for one in _seeded(paper, row, arm, case))

    return Verdict(row, _value(paper, row, look))


def _seeded(paper: str, row: Row, arm: str, case: Case) -> list[Cell]:
    seeds = settings(paper).figures[row.figure].seeds
    return [cell(paper, arm, case, seed) for seed in range(seeds)]


def _value(paper: str, row: Row, look: Look) -> float:
    claim = row.template
    points = [dict(zip(row.sweep, values, strict=True)) for values in product(*row.sweep.values())]
    found = [_at_point(paper, row, {**row.case, **point}, look) for point in points]
    match claim.value:
        case "share_above":
            return fmean(ratio > 1 for ratio in found)
        case "share_below":
            return fmean(ratio < 1 for ratio in found)
        case "share_near":
            return fmean(_NEAR[0] <= ratio <= _NEAR[1] for ratio in found)
    match claim.reduce:
        case "min":
            return min(found)
        case "max":
            return max(found)
        case "argmin" | "argmax":
            extreme = min(found) if claim.reduce == "argmin" else max(found)
            (axis,) = claim.across
            return float(points[found.index(extreme)][axis])
        case "mean":
            return _mean(found, claim.value == "ratio")
    (only,) = found
    return only


def _mean(found: Sequence[float], ratios: bool) -> float:
    if not ratios:
        return fmean(found)
    return geometric_mean(found) if min(found) > 0 else 0.0


def _at_point(paper: str, row: Row, case: Case, look: Look) -> float:
    claim = row.template
    ours = look(claim.of, case)
    if claim.value == "plain":
        return ours
    others = [look(arm, other) for arm in claim.against for other in _other_cases(paper, row, case)]
    better = settings(paper).metrics[claim.metric].better
    if len(others) > 1 and better is None:
        raise ValueError(f"{row.name}: no one says which {claim.metric} is the best")
    theirs = min(others) if better == "lower" else max(others)
    if claim.value == "difference":
        return ours - theirs
    if theirs == 0:
        return 1.0 if ours == 0 else math.inf
    return ours / theirs


def _other_cases(paper: str, row: Row, case: Case) -> Iterator[Case]:
    """The other side's, one for each value of an axis of which the best counts."""
    changed = row.template.against_case
    over = settings(paper).figures[row.figure].over
    axes = {axis: over[axis] if value == BEST else (value,) for axis, value in changed.items()}
    for values in product(*axes.values()):
        yield {**case, **dict(zip(axes, values, strict=True))}
