"""Settings changed by name: what a cause blames, or the values that a silent paper leaves open."""

from benchmarks.papers.causes import CAUSES
from benchmarks.papers.ranges import RANGES
from benchmarks.papers.settings import Changes


def changes_of(name: str) -> Changes:
    """Of a cause, or of `range:value`. Raises KeyError."""
    if name in CAUSES:
        return CAUSES[name].changes
    chosen, _, value = name.partition(":")
    return RANGES[chosen].values[value]
