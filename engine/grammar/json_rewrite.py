"""Writes JSON schemas in words that xgrammar follows exactly.

It allows raw control characters in strings with a bounded length, days that no month has, and IPv4
numbers with leading zeros. As patterns, all of these are followed. Outputs are then a part of what
the schema allows: no 29 February, no escapes in strings of bounded length.

Equal patterns become one definition, which is compiled once: each bounded length of 40 takes a
quarter of a second of a core for a vocabulary of 49,152 tokens.
"""

import json
from collections import defaultdict
from typing import Any

from engine.grammar.schema_words import asserted, subschemas
from engine.grammar.size import can_be_shared

_CHARACTER = r"[^\x00-\x1f\x22\x5c\x7f]"
_DATE = (
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
_PATTERNS = {
    "date": _DATE,
    "time": _CLOCK + _ZONE,
    "date-time": f"{_DATE}T{_CLOCK}{_ZONE}",
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
}


def followable(schema_text: str) -> str:
    """The schema (which `check_schema` has passed) with patterns in place of these keywords."""
    schema: Any = json.loads(schema_text)
    for _, one in subschemas(schema):
        if isinstance(one, dict):
            if "minLength" in one or "maxLength" in one:
                least, most = one.pop("minLength", 0), one.pop("maxLength", "")
                one["pattern"] = f"^{_CHARACTER}{{{least},{most}}}$"
            elif one.get("format") in _PATTERNS:
                one["pattern"] = f"^{_PATTERNS[one.pop('format')]}$"
    _share_patterns(schema)
    return json.dumps(schema)


def _share_patterns(schema: Any) -> None:
    """Puts a reference in the place of each schema of texts with a pattern that occurs again."""
    alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path, one in subschemas(schema):
        if isinstance(one, dict) and "pattern" in one and can_be_shared(path, one):
            alike[json.dumps(asserted(one), sort_keys=True)].append(one)
    for number, (shared, places) in enumerate(alike.items()):
        if len(places) > 1:
            name = f"spindle_shared_{number}"
            for place in places:
                place.clear()
                place["$ref"] = f"#/$defs/{name}"
            schema.setdefault("$defs", {})[name] = json.loads(shared)
