"""The words of JSON schemas, and the schemas within one."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

UNSUPPORTED = {
    "$anchor",
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "multipleOf",
    "not",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
}
TYPE_OF_KEYWORD = {
    "minLength": "string",
    "maxLength": "string",
    "pattern": "string",
    "format": "string",
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "items": "array",
    "prefixItems": "array",
    "minItems": "array",
    "maxItems": "array",
    "properties": "object",
    "required": "object",
    "additionalProperties": "object",
    "patternProperties": "object",
    "propertyNames": "object",
    "minProperties": "object",
    "maxProperties": "object",
}
ALONE = ("$ref", "anyOf", "oneOf", "allOf")
"""Beside one of these the compiler ignores every other assertion."""


def subschemas(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The schema itself and all within it, each with its path."""
    yield path, schema
    if not isinstance(schema, dict):
        return
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        members = schema.get(keyword)
        if isinstance(members, dict):
            for name, one in members.items():
                yield from subschemas(one, f"{path}/{keyword}/{name}")
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        branches = schema.get(keyword)
        if isinstance(branches, list):
            for number, one in enumerate(branches):
                yield from subschemas(one, f"{path}/{keyword}/{number}")
    for keyword in ("items", "additionalProperties", "propertyNames"):
        if isinstance(schema.get(keyword), dict):
            yield from subschemas(schema[keyword], f"{path}/{keyword}")


def asserted(schema: Schema) -> Schema:
    """The schema without its annotations."""
    known = {*TYPE_OF_KEYWORD, *ALONE, *UNSUPPORTED, "type", "enum", "const"}
    return {keyword: value for keyword, value in schema.items() if keyword in known}


def types_of(schema: Schema) -> list[str]:
    types = schema.get("type", [])
    return list(types) if isinstance(types, list) else [types]


def followed(schema: Any, root: Any) -> Any:
    """The schema itself, or the one that it refers to."""
    for _ in range(16):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = resolved(schema["$ref"], root)
    return None


def resolved(reference: str, root: Any) -> Any:
    """The subschema at a reference of the form #/...; None if there is none."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found = root
    for step in reference[2:].split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or step not in found:
            return None
        found = found[step]
    return found
