"""JSON schemas by feature, as clients write them, and schemas that must be refused."""

from typing import Any

import jsonschema

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
_TREE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
}
_SHAPE = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "size": {"type": "integer"}},
            "required": ["kind", "size"],
        }
        for kind in ("circle", "square")
    ]
}
_FORMATS = ("date", "time", "date-time", "duration", "ipv4", "ipv6", "uuid", "uri")

FOLLOWED: dict[str, Any] = {
    "anything": True,
    "empty schema": {},
    "annotations": {"title": "A", "description": "b", "default": 1, "type": "integer", "x-ui": 1},
    "length": {"type": ["string", "null"], "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": r"^(\d{3}|[^a]{2})-\w{1,4}$"},
    "pattern anywhere": {"type": "string", "pattern": "ab"},
    "integer": {"type": "integer", "minimum": -7, "exclusiveMaximum": 123},
    "number": {"type": "number", "exclusiveMinimum": -1.5, "maximum": 2.25},
    "multipleOf": {"type": "integer", "multipleOf": 7},
    "enum of everything": {"enum": ["a", 1, None, {"x": [1, 2]}, 1.5, True]},
    "enum of signs": {"enum": ["é😀", "\u2028", 'a"b\\c\n']},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}],
        "items": {"type": "boolean"},
        "minItems": 2,
        "maxItems": 4,
    },
    "object": _PERSON,
    "object with optional properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "keys with signs": {
        "type": "object",
        "properties": {'ключ "q" \\ /': {"type": "null"}, "": {"type": "null"}},
        "required": ['ключ "q" \\ /', ""],
    },
    "anyOf": {"anyOf": [{"type": "integer"}, _PERSON]},
    "oneOf by a tag": _SHAPE,
    "allOf": {"allOf": [{"type": "integer"}, {"minimum": 3, "type": "integer"}]},
    "nested": {
        "type": "object",
        "properties": {"people": {"type": "array", "items": _PERSON, "maxItems": 2}},
        "required": ["people"],
    },
    "recursive": {"$defs": {"node": _TREE}, "$ref": "#/$defs/node"},
    "reference to the root": {
        "type": "object",
        "properties": {"child": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
    },
    **{f"format {name}": {"type": "string", "format": name} for name in _FORMATS},
}

REFUSED: dict[str, Any] = {
    'Unimplemented keys: ["not"]': {"not": {"type": "string"}},
    'Unimplemented keys: ["if", "then"]': {"if": {"type": "string"}, "then": {"type": "string"}},
    "oneOf constraints are not supported": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "Unknown format: color": {"type": "string", "format": "color"},
    "'http://example.com/a' is not present": {"$ref": "http://example.com/a"},
    "schema must be an object or boolean": {"type": "object", "properties": {"a": 1}},
    "Expected positive integer for 'maxLength'": {"type": "string", "maxLength": "3"},
    "Expecting object schema": False,
    "allows no output": {"$defs": {"x": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/x"},
}
"""By a part of the error's message."""


def validator(schema: Any) -> Any:
    """Another program's, which checks formats as well."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker)
