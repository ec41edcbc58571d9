"""Bounds what one body of JSON may hold, and how deep it is nested where a client may fill it as it
likes. The size is checked before it is parsed: Python's parser and pydantic hold the interpreter's
lock, and so the event loop, however many threads there are."""

import json
from typing import Any, TypeVar

MAX_VALUES = 2**18
"""Numbers, texts and other values of a body, most of which would be token ids."""
MAX_MEMBERS = 2**16
"""Lists, objects, and members of objects. Each takes as long as ten numbers."""
MAX_DIGITS = 1000
"""The most digits of a number: the time to read one grows with the square of its length."""

_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_TOO_LONG = b"0" * (MAX_DIGITS + 1)


class TooManyValues(ValueError):
    """Text that is perhaps JSON, and would take too long to parse."""


def parsed(text: bytes) -> Any:
    """Raises TooManyValues, or what `json.loads` raises. Only UTF-8, whose signs are counted."""
    if len(text) > MAX_DIGITS and _problem(text) and (problem := _problem(_without_texts(text))):
        raise TooManyValues(problem)
    # A function of Python's lets other threads run; floats take longer to read than anything else.
    return json.loads(text.decode("utf-8-sig"), parse_float=_as_float)


def _as_float(text: str) -> float:
    return float(text)


def _problem(text: bytes) -> str | None:
    if text.count(b",") > MAX_VALUES:
        return f"has more than {MAX_VALUES} values; send less at once"
    if sum(map(text.count, (b"[", b"{", b":"))) > MAX_MEMBERS:
        return (
            f"has more than {MAX_MEMBERS} lists, objects and members of objects; send less at once"
        )
    if _TOO_LONG in text.translate(_AS_ZEROS):
        return f"has a number of more than {MAX_DIGITS} digits; shorten it"
    return None


def _without_texts(text: bytes) -> bytes:
    """What of JSON is outside of its texts."""
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') > 2 * MAX_VALUES:
        raise TooManyValues(f"has more than {MAX_VALUES} texts; send less at once")
    return b"".join(bare.split(b'"')[::2])


def json_length(value: Any, most: int) -> int:
    """The least that the value takes as JSON, counted only until it is more than `most`."""
    length, waiting = 0, [value]
    while waiting and length <= most:
        match waiting.pop():
            case dict() as members:
                length += 2 + len(members)
                if length <= most:
                    length += sum(map(len, members))
                    waiting += members.values()
            case list() as items:
                length += 1 + len(items)
                if length <= most:
                    waiting += items
            case str() as text:
                length += len(text)
            case int() as number:
                length += number.bit_length() // 4
            case _:
                length += 1
    return length


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
