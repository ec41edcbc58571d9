"""Why rows are missed: the setting that each group of rows blames, and a run with it changed.

`python -m benchmarks.papers --cause NAME` runs the group's rows with both settings, side by side. A
missed row without such a run is unexplained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from benchmarks.papers.row import Interval
from benchmarks.papers.settings import Changes


@dataclass(frozen=True, slots=True)
class Cause:
    paper: str
    rows: Sequence[str]
    """The missed rows that it explains, as patterns of file names."""
    says: str
    changes: Changes
    shows: str
    """The cheapest row that shows it."""
    becomes: Interval
    """What the value of `shows` then is; otherwise the cause does not hold."""


CAUSES: Mapping[str, Cause] = {}


def cause_of(row: str) -> str:
    """Its name and what it says; `unexplained` if no experiment shows why the row is missed."""
    for name, cause in CAUSES.items():
        if any(fnmatchcase(row, pattern) for pattern in cause.rows):
            return f"{cause.says} (--cause {name})"
    return "unexplained"
