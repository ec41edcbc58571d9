"""Bounds how deep the JSON is nested that a client may fill as it likes."""

from typing import TypeVar

MAX_NESTING = 128
"""Levels of lists and objects. What is done to such a value later (copied, written, shown to a chat
template) takes one or more levels of recursion for each."""

T = TypeVar("T")


def shallow(value: T) -> T:
    """The value; raises ValueError if it is nested too deep."""
    level: list[object] = [value]
    for _ in range(MAX_NESTING):
        level = [inner for one in level for inner in _inner(one)]
        if not level:
            return value
    raise ValueError(f"is nested deeper than {MAX_NESTING} levels; flatten it")


def _inner(value: object) -> list[object]:
    """The lists and objects directly in a list or object."""
    match value:
        case dict():
            inner = list(value.values())
        case list():
            inner = value
        case _:
            return []
    return [one for one in inner if isinstance(one, dict | list)]
