"""Rows of our own: Spindle's defaults against the best paper policy and against oracles.

Over 5 paired seeds the planner must have at least 0.97 of the best paper policy's goodput and
attainment, and 0.85 of the clairvoyant's. For schedules: the latency under shortest remaining time
first, as a share of theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from benchmarks.papers.cells import settings
from benchmarks.papers.row import Interval, Row, RowTemplate, Scalar, written_out

_PAPER_ARMS = (
    "vllm",
    "vllm_priority",
    "sarathi",
    "fixed_1",
    "fixed_3",
    "fixed_5",
    "specinfer",
    "adaserve",
)
_RATES: Mapping[str, tuple[Scalar, ...]] = {"llama": (2.6, 4.0, 4.8), "qwen": (2.4, 3.6, 4.2)}
_BEST_PAPER: Interval = (0.97, inf)
_ORACLE: Interval = (0.85, inf)
_SCHEDULES = {
    "laps_sd": ("fig5", ("laps_sd", "lp_sjf", "las", "fcfs", "default")),
    "self_scheduling": ("fig6", ("fcfs", "length_only", "by_length", "default")),
}


def is_bound(row: Row) -> bool:
    """Whether its status is kept or missed, rather than reproduced or not."""
    return row.name.split("/")[2] == "bound"


def bounds(paper: str) -> Iterator[Row]:
    if paper == "adaserve":
        yield from _planner("fig9", "goodput")
        yield from _planner("fig8", "slo_attainment")
    if paper in _SCHEDULES:
        yield from _srpt(paper, *_SCHEDULES[paper])


def _planner(figure: str, metric: str) -> Iterator[Row]:
    sides: Sequence[tuple[str, tuple[str, ...], Interval]] = (
        ("best_paper", _PAPER_ARMS, _BEST_PAPER),
        ("oracle", ("clairvoyant",), _ORACLE),
    )
    for machine, rates in _RATES.items():
        for side, against, accept in sides:
            yield from _rows(
                "adaserve",
                figure,
                row=f"bound/{{machine}}/{{rate}}/planner_vs_{side}",
                metric=metric,
                of="planner",
                against=against,
                only={"machine": (machine,), "rate": rates},
                accept=accept,
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
        )


def _rows(paper: str, figure: str, **claim: object) -> Iterator[Row]:
    template = RowTemplate.model_validate(
        {"value": "ratio", "unit": "x", "quote": "not the paper's", **claim}
        | {"source": "not specified; ours"}
    )
    chosen = settings(paper).figures[figure]
    return written_out(paper, figure, template, chosen.case, chosen.over)
