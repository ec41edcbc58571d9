"""Settings changed by name: what a cause blames, or the values that a silent paper leaves open."""

from lab.papers.causes import CAUSES
from lab.papers.ranges import RANGES
from lab.papers.settings import Changes


def changes_of(name: str) -> Changes:
    """Of a cause, which a test may run `:small`, with its changes or `:small, as it is`, or of
    `range:value`. Raises KeyError."""
    chosen, _, value = name.partition(":")
    if chosen in RANGES:
        return RANGES[chosen].values[value]
    cause = CAUSES[chosen]
    return {
        "": cause.changes,
        "small": {**cause.small, **cause.changes},
        "small, as it is": cause.small,
    }[value]
