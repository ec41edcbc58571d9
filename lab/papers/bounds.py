"""Rows of our own: the latency under shortest remaining time first, as a share of that under other
schedules."""

from collections.abc import Iterator, Mapping, Sequence

from lab.papers.cells import settings
from lab.papers.row import Row, RowTemplate, Scalar, written_out

_SCHEDULES = {
    "laps_sd": ("fig5", ("laps_sd", "lp_sjf", "las", "fcfs", "default")),
    "self_scheduling": ("fig6", ("fcfs", "length_only", "default")),
}
_SRPT_AT: Mapping[str, Sequence[Scalar]] = {"requests": (10, 50), "rate": (16,)}
"""The part of an axis over which schedules are compared with the oracle, for the time that the
whole takes."""


def bounds(paper: str) -> Iterator[Row]:
    if paper in _SCHEDULES:
        yield from _srpt(paper, *_SCHEDULES[paper])


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
