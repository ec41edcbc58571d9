"""Large response bodies as JSON, written without holding up the event loop."""

import asyncio
import json
import math
from typing import Any

from deployments.ingress.requests.json_bounds import json_length

Body = dict[str, Any]

_LARGE = 65536
"""Characters from which on a body is written in pieces, which takes several times as long."""
_PAUSE_AFTER = 4096
"""Pieces between two pauses for the event loop: some milliseconds."""
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ASCII = json.JSONEncoder(allow_nan=False)


async def encode(body: Body) -> bytes:
    """The body as `json.dumps` writes it with its most compact separators."""
    # Half a surrogate pair, which a client has sent and which is returned to it, is no UTF-8. What
    # replaces it here is JSON's own escape of it.
    return (await _written(body, _COMPACT)).encode(errors="backslashreplace")


async def in_ascii(body: Body) -> str:
    """For events: some readers of them take signs beyond ASCII for ends of lines."""
    return await _written(body, _ASCII)


async def _written(body: Body, encoder: json.JSONEncoder) -> str:
    if json_length(body, _LARGE) <= _LARGE:
        return encoder.encode(body)
    pieces = []
    for number, piece in enumerate(encoder.iterencode(body)):
        pieces.append(piece)
        if number % _PAUSE_AFTER == 0:
            await asyncio.sleep(0)
    return "".join(pieces)


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
