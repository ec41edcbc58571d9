"""Counts independent claims, not rows: a claim that is written out over several axes is one.

A claim is reproduced when each of its rows is. Calibrated, circular and repeated ones, and rows of
our own, stand apart.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.papers.row import Row
from benchmarks.papers.verdicts import Verdict

NOT_RUNNABLE = "not runnable here"


def count_claims(verdicts: Iterable[Verdict], not_run: Iterable[Row]) -> Counter[str]:
    """By status, without the causes."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for verdict in verdicts:
        rows.setdefault(_claim(verdict.row), []).append(verdict.status.partition(":")[0])
    for row in not_run:
        claims = NOT_RUNNABLE if row.accepted else "not specified by the paper"
        rows.setdefault(_claim(row), []).append(row.template.standing or claims)
    return Counter(map(_together, rows.values()))


def _claim(row: Row) -> tuple[str, str, str]:
    return row.name.partition("/")[0], row.figure, row.template.row


def _together(statuses: Sequence[str]) -> str:
    return "missed" if "missed" in statuses else statuses[0]
