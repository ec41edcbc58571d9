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

FOLLOWED: dict[str, Any] = {
    "anything": True,
    "empty schema": {},
    "annotations": {"title": "A", "description": "b", "default": 1, "type": "integer", "x-ui": 1},
    "string": {"type": "string"},
    "least and most characters": {"type": "string", "minLength": 2, "maxLength": 4},
    "least characters": {"type": "string", "minLength": 3},
    "most characters": {"type": ["string", "null"], "maxLength": 2},
    "equal lengths in many places": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 3, "title": "A name"},
            "names": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            "again": {"$ref": "#/properties/name"},
            "other": {"anyOf": [{"$ref": "#/$defs/name"}, {"type": "string", "maxLength": 1}]},
            "map": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}},
        },
        "required": ["name", "names", "again"],
        "$defs": {"name": {"type": "string", "maxLength": 3}},
    },
    "pattern": {"type": "string", "pattern": "^[a-c]{2,3}$"},
    "pattern anywhere": {"type": "string", "pattern": "ab"},
    "pattern at the beginning": {"type": "string", "pattern": "^ab"},
    "pattern with alternatives": {"type": "string", "pattern": "^(foo|bar)[0-9]*$"},
    "pattern with classes": {"type": "string", "pattern": r"^\d{3}-\w{1,4}$"},
    "pattern without": {"type": "string", "pattern": "^[^a]{2}$"},
    "integer": {"type": "integer"},
    "integer from": {"type": "integer", "minimum": 3},
    "integer to": {"type": "integer", "maximum": -5},
    "integer between": {"type": "integer", "minimum": -7, "maximum": 123},
    "integer strictly between": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    "number": {"type": "number"},
    "number between": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "number strictly between": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "several types": {"type": ["integer", "null"]},
    "several types with a bound": {"type": ["number", "string"], "minimum": 5},
    "enum of everything": {"enum": ["a", 1, None, {"x": [1, 2]}, 1.5, True]},
    "enum of signs": {"enum": ["é😀", "\u2028", 'a"b\\c\n']},
    "const": {"const": {"a": [1, 'b"c']}},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "empty array": {"type": "array", "items": {"type": "integer"}, "maxItems": 0},
    "any array": {"type": "array"},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
        "items": False,
    },
    "tuple and more": {
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
    },
    "open object": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "boolean"},
        "required": ["a"],
    },
    "closed object": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": False,
    },
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "map of a size": {
        "type": "object",
        "additionalProperties": {"type": "null"},
        "minProperties": 1,
        "maxProperties": 2,
    },
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "multipleOf": {"type": "integer", "multipleOf": 7},
    "allOf of several": {"allOf": [{"type": "integer"}, {"minimum": 3, "type": "integer"}]},
    "beside": {"anyOf": [{"required": ["a"], "type": "object"}], "type": "object"},
    "of any type": {"minLength": 3},
    "pattern beside a length": {"type": "string", "pattern": "^a", "maxLength": 3},
    "a property that is not declared": {"type": "object", "required": ["zz"]},
    "never": {"type": "object", "properties": {"a": False}},
    "keys with signs": {
        "type": "object",
        "properties": {'ключ "q" \\ /': {"type": "null"}, "": {"type": "null"}},
        "required": ['ключ "q" \\ /', ""],
    },
    "anyOf": {"anyOf": [{"type": "integer"}, _PERSON]},
    "oneOf by type": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    "oneOf by a tag": _SHAPE,
    "allOf of one": {"allOf": [{"type": "integer", "minimum": 2}], "description": "d"},
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
    "reference to a property": {
        "type": "object",
        "properties": {"x": {"type": "boolean"}, "y": {"$ref": "#/properties/x"}},
        "required": ["x", "y"],
    },
    "older definitions": {"definitions": {"a": {"type": "null"}}, "$ref": "#/definitions/a"},
    **{
        f"format {name}": {"type": "string", "format": name}
        for name in ("date", "time", "date-time", "duration", "ipv4", "ipv6", "uuid", "uri")
    },
}

REFUSED: dict[str, Any] = {
    'Unimplemented keys: ["not"]': {"not": {"type": "string"}},
    'Unimplemented keys: ["uniqueItems"]': {
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}},
    },
    'Unimplemented keys: ["if", "then"]': {"if": {"type": "string"}, "then": {"type": "string"}},
    'Unimplemented keys: ["propertyNames"]': {
        "type": "object",
        "propertyNames": {"pattern": "^[ab]+$"},
    },
    "only supported when all keys": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
        "minProperties": 2,
    },
    "oneOf constraints are not supported": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "Unknown format: color": {"type": "string", "format": "color"},
    "'http://example.com/a' is not present": {"$ref": "http://example.com/a"},
    "'/$defs/none' does not exist": {"$ref": "#/$defs/none"},
    "schema must be an object or boolean": {"type": "object", "properties": {"a": 1}},
    "Expected positive integer for 'maxLength'": {"type": "string", "maxLength": "3"},
    "type must be a string": {"anyOf": [{"type": 5}]},
    "Expected array for 'required'": {"oneOf": [{"required": 1}, {"type": "null"}]},
    "enum must be an array": {"enum": 5},
    "anyOf is empty": {"enum": []},
    "Invalid type: strin": {"type": "strin"},
    "Expecting object schema": False,
    "allows no output": {"$defs": {"x": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/x"},
}
"""By a part of the error's message."""


def validator(schema: Any) -> Any:
    """Another program's, which checks formats as well."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker)
