"""Rows of our own: Spindle's defaults against the best paper policy and against oracles.

At every load the planner must have at least 0.97 of the best other policy's attainment and
goodput, and 0.85 of the goodput that no policy can exceed. For schedules: the latency under
shortest remaining time first, as a share of theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from lab.papers.cells import settings
from lab.papers.row import Interval, Row, RowTemplate, Scalar, written_out

_OURS = ("planner", "product")
"""Our planner under the schedule that all others have, and under our own."""
_BEST: Interval = (0.97, inf)
_BOUND: Interval = (0.85, inf)
_LOAD_METRICS = {"slo_attainment": "share", "goodput": "tokens/s", "longest_latency": "s"}
_SCHEDULES = {
    "laps_sd": ("fig5", ("laps_sd", "lp_sjf", "las", "fcfs", "default")),
    "self_scheduling": ("fig6", ("fcfs", "length_only", "default")),
}
_SRPT_AT: Mapping[str, Sequence[Scalar]] = {"requests": (10, 50), "rate": (16,)}
"""The part of an axis over which schedules are compared with the oracle, for the time that the
whole takes."""


def is_bound(row: Row) -> bool:
    """Whether its status is kept or missed, rather than reproduced or not."""
    return row.name.split("/")[2] == "bound"


def bounds(paper: str) -> Iterator[Row]:
    if "load" in settings(paper).figures:
        yield from _loads(paper)
    if paper in _SCHEDULES:
        yield from _srpt(paper, *_SCHEDULES[paper])


def _loads(paper: str) -> Iterator[Row]:
    arms = settings(paper).figures["load"].arms
    others = tuple(arm for arm in arms if arm not in _OURS)
    for metric, unit in _LOAD_METRICS.items():
        for arm in arms:
            row = f"{{machine}}/{{load}}/{arm}/{metric}"
            yield from _rows(
                paper, "load", row=row, metric=metric, of=arm, value="plain", unit=unit
            )
    for arm in _OURS:
        for metric in ("slo_attainment", "goodput"):
            yield from _rows(
                paper,
                "load",
                row=f"bound/{{machine}}/{{load}}/{arm}/{metric}_vs_best",
                metric=metric,
                of=arm,
                against=others,
                accept=_BEST,
            )
        yield from _rows(
            paper,
            "load",
            row=f"bound/{{machine}}/{{load}}/{arm}/goodput_of_bound",
            metric="of_bound",
            of=arm,
            value="plain",
            unit="share",
            accept=_BOUND,
        )


def _srpt(paper: str, figure: str, arms: Sequence[str]) -> Iterator[Row]:
    """Latency under shortest remaining time first, as a share of the arm's."""
    over = settings(paper).figures[figure].over
    for arm in arms:
        yield from _rows(
            paper,
            figure,
            row=f"bound/{{dataset}}/srpt_vs_{arm}",
            metric="mean_latency",
            of="srpt",
            against=(arm,),
            across=tuple(axis for axis in over if axis != "dataset"),
            reduce="mean",
            only={axis: values for axis, values in _SRPT_AT.items() if axis in over},
        )


def _rows(paper: str, figure: str, **claim: object) -> Iterator[Row]:
    template = RowTemplate.model_validate(
        {"value": "ratio", "unit": "x", "quote": "not the paper's", **claim}
        | {"source": "not specified; ours"}
    )
    chosen = settings(paper).figures[figure]
    return written_out(paper, figure, template, chosen.case, chosen.over)
