"""A schema whose checks once took 25 seconds."""

from typing import Any

SAME_HASH = 2**61 - 1
"""Python hashes every multiple of it to 0."""
BRANCHES = 64
_LISTED = ("a1", "a2", "a3", "a4")


def branches(step: int = SAME_HASH, values: int = 1050) -> dict[str, Any]:
    """They exclude each other by one property, and have others with lists of multiples of `step`,
    which may be compared first."""
    lists = [
        [step * (number + 1 + 10 * place * values) for number in range(values)] for place in (0, 1)
    ]
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {
                    **{name: {"$ref": f"#/$defs/{number % 2}"} for name in _LISTED},
                    "b": {"const": number},
                },
                "required": [*_LISTED, "b"],
            }
            for number in range(BRANCHES)
        ],
        "$defs": {str(place): {"enum": numbers} for place, numbers in enumerate(lists)},
    }
