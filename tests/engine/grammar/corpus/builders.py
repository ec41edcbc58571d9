"""Builds JSON schemas in few words."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
INT: Schema = {"type": "integer"}
NUM: Schema = {"type": "number"}
BOOL: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}


def obj(required: str = "", /, **properties: Any) -> Schema:
    """Required: names with spaces between them; `*`: all."""
    names = list(properties) if required == "*" else required.split()
    return {"type": "object", "properties": properties, "required": names}


def closed(required: str = "", /, **properties: Any) -> Schema:
    return {**obj(required, **properties), "additionalProperties": False}


def arr(items: Any, least: int | None = None, most: int | None = None) -> Schema:
    bounds = {"minItems": least, "maxItems": most}
    bounded = {name: value for name, value in bounds.items() if value is not None}
    return {"type": "array", "items": items, **bounded}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def either(*schemas: Any) -> Schema:
    return {"anyOf": list(schemas)}


def maybe(schema: Schema) -> Schema:
    return either(schema, NULL)


def text(least: int = 0, most: int = 12) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most}


def like(pattern: str) -> Schema:
    return {"type": "string", "pattern": pattern}


def fmt(name: str) -> Schema:
    return {"type": "string", "format": name}


def span(least: float, most: float, kind: str = "integer") -> Schema:
    return {"type": kind, "minimum": least, "maximum": most}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def defs(schema: Schema, **definitions: Schema) -> Schema:
    return {**schema, "$defs": definitions}


def tagged(name: str, **branches: Schema) -> Schema:
    """Objects of which one property, different in each branch, names the kind."""
    return {
        "oneOf": [
            obj(
                f"{name} {' '.join(branch['required'])}",
                **{name: {"const": kind}, **branch["properties"]},
            )
            for kind, branch in branches.items()
        ]
    }
