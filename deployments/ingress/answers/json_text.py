"""Large response bodies as JSON, written without holding up the event loop."""

import asyncio
import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

Body = dict[str, Any]

_ITEMS = 64
"""List items that are written at once."""
_PAUSE_AFTER = 65536
"""Characters between two pauses for the event loop, and of a text that are written at once."""


async def encode(body: Body) -> bytes:
    """The body as `json.dumps` writes it with its most compact separators."""
    written: list[str] = []
    unpaused = 0
    for piece in _pieces(body):
        written.append(piece)
        unpaused += len(piece)
        if unpaused > _PAUSE_AFTER:
            unpaused = 0
            await asyncio.sleep(0)
    # Half a surrogate pair, which a client has sent and which is returned to it, is no UTF-8. What
    # replaces it here is JSON's own escape of it.
    return "".join(written).encode(errors="backslashreplace")


def without_infinities(value: Any) -> Any:
    """The value with null in place of NaN and infinities, which JSON does not have and Python reads
    from clients."""
    match value:
        case dict():
            return {name: without_infinities(inner) for name, inner in value.items()}
        case list():
            return [without_infinities(inner) for inner in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _pieces(value: Any) -> Iterator[str]:
    match value:
        case dict() if any(map(_takes_long, value.values())):
            for number, (name, inner) in enumerate(value.items()):
                yield f"{',' if number else '{'}{_dumps(str(name))}:"
                yield from _pieces(inner)
            yield "}"
        case str() if len(value) > _PAUSE_AFTER:
            yield '"'
            for at in range(0, len(value), _PAUSE_AFTER):
                yield _dumps(value[at : at + _PAUSE_AFTER])[1:-1]
            yield '"'
        case list() if len(value) > _ITEMS or (value and isinstance(value[0], dict)):
            yield from _list_pieces(value)
        case _:
            yield _dumps(value)


def _takes_long(value: Any) -> bool:
    return isinstance(value, dict | list) or (isinstance(value, str) and len(value) > _PAUSE_AFTER)


def _list_pieces(values: list[Any]) -> Iterator[str]:
    if isinstance(values[0], dict) and len(values) <= _ITEMS:
        for number, value in enumerate(values):
            yield "," if number else "["
            yield from _pieces(value)
    else:
        remaining = iter(values)
        begin = "["
        while batch := list(islice(remaining, _ITEMS)):
            yield begin + _dumps(batch)[1:-1]
            begin = ","
    yield "]"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
