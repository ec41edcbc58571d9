"""Counts independent claims, not rows: a claim that is written out over several axes is one.

A claim is reproduced when each of its rows is. Calibrated, circular and repeated ones and those of
which the paper says nothing stand apart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lab.papers.row import Row

NOT_RUNNABLE = "not runnable here"
NOT_RUN = "not run"
STATUSES = (
    "reproduced",
    "missed",
    NOT_RUN,
    NOT_RUNNABLE,
    "calibrated",
    "circular",
    "repeats",
)
"""Statuses of a paper's claims, in the order of the table in lab/docs/papers.md."""
_NO_CLAIM = "not specified by the paper"


def count_claims(
    rows: Iterable[Row], not_runnable: Iterable[str], recorded: Mapping[str, str]
) -> Counter[str]:
    """By status; `recorded`: statuses by row name. Claims of which a row is missing there are not
    run."""
    impossible = set(not_runnable)
    statuses: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.template.standing is not None:
            status: str = row.template.standing
        elif row.accepted is None:
            status = _NO_CLAIM
        elif row.name in impossible:
            status = NOT_RUNNABLE
        else:
            status = recorded.get(row.name, NOT_RUN).partition(":")[0]
        statuses.setdefault(_claim(row), []).append(status)
    return Counter(map(_together, statuses.values()))


def _claim(row: Row) -> tuple[str, str, str]:
    return row.name.partition("/")[0], row.figure, row.template.row


def _together(statuses: Sequence[str]) -> str:
    for decisive in ("missed", NOT_RUN):
        if decisive in statuses:
            return decisive
    return statuses[0]
