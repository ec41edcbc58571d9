"""How much a schema, a pattern or a grammar has to compile, and the most that is compiled."""

import json
import re
from typing import Any

from engine.errors import InvalidRequest
from engine.grammar.schema_words import Schema, asserted, subschemas

MAX_REPETITIONS = 512
"""For all bounded lengths and repetitions together: each is a state, which takes up to 7 ms of a
core to compile for a vocabulary of 49,152 tokens."""
_MOST_STATES = 128
"""For one repetition: xgrammar counts longer ones without a state for each."""
_REPETITION = re.compile(r"\{\s*(\d+)\s*(?:,\s*(?:(\d+)\s*)?)?\}")
_OF_TEXTS = {"type", "pattern", "minLength", "maxLength"}


def repetitions(pattern: str) -> int:
    """What all bounded repetitions of a regular expression or a grammar add up to."""
    bounds = [most or least for least, most in _REPETITION.findall(pattern)]
    # Python reads no number of thousands of digits.
    return sum(
        min(int(bound), _MOST_STATES) if len(bound) < 10 else _MOST_STATES for bound in bounds
    )


def can_be_shared(path: str, schema: Schema) -> bool:
    """Whether a reference can stand in the place of this schema of texts, so that equal ones are
    compiled once (engine/grammar/compile_call.py)."""
    return (
        bool(path) and not path.endswith("/propertyNames") and asserted(schema).keys() <= _OF_TEXTS
    )


def check_size(schema: Any, source: str) -> None:
    """Raises InvalidRequest for a schema that takes too long to compile. `source`: the client's
    field."""
    states = _states(schema)
    repeated = sum(states.values())
    if repeated > MAX_REPETITIONS:
        largest = max(states, key=lambda path: states[path]) or "the schema"
        raise InvalidRequest(
            source,
            f"lengths and repetitions of texts add up to {repeated} (one counts for at most "
            f"{_MOST_STATES}, equal texts once), and {MAX_REPETITIONS} can be compiled in time; "
            f"lower or leave out some maxLength, that of {largest} first, or make some equal",
        )


def _states(schema: Any) -> dict[str, int]:
    """What the bounded lengths and repetitions of texts count for, by their paths."""
    states: dict[str, int] = {}
    seen = set()
    for path, one in subschemas(schema):
        if not isinstance(one, dict):
            continue
        if can_be_shared(path, one):
            text = json.dumps(asserted(one), sort_keys=True)
            if text in seen:
                continue
            seen.add(text)
        length = one["maxLength"] if "maxLength" in one else one.get("minLength", 0)
        states[path] = min(length, _MOST_STATES) + repetitions(str(one.get("pattern", "")))
    return states
