"""Refuses JSON schemas that the compiler would follow only in part.

xgrammar ignores assertions that it does not know, so an output could contradict its schema. Each
rule here was found with random outputs (tests/engine/grammar/test_schemas.py). Keywords that the
standard does not define are annotations, and are ignored as it says.
"""

from typing import Any

from engine.errors import InvalidRequest
from engine.grammar.exclusive import MAX_PAIRS, Branches, TooManyValues, pairs_of_branches
from engine.grammar.schema_words import (
    ALONE,
    TYPE_OF_KEYWORD,
    UNSUPPORTED,
    Schema,
    resolved,
    subschemas,
    types_of,
)
from engine.grammar.size import check_size

MAX_PROPERTIES = 256
"""In one object; the time to compile grows with the square of those that are optional."""

FORMATS = (
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
)


def check_schema(schema: Any, source: str) -> None:
    """Raises InvalidRequest for a schema that could not be followed exactly, or takes too long to
    compile. `source`: the client's field."""
    for path, one in subschemas(schema):
        if isinstance(one, dict) and (problem := _problem_of_values(one)) is not None:
            raise InvalidRequest(source, f"{path or 'the schema'}: {problem}")
    if sum(pairs_of_branches(one) for _, one in subschemas(schema)) > MAX_PAIRS:
        raise InvalidRequest(
            source,
            "the branches of oneOf are too many to be told apart: at most 64 of one, and fewer of "
            "several; use anyOf",
        )
    branches = Branches(schema)
    for path, one in subschemas(schema):
        names = path.endswith("/propertyNames") and isinstance(one, dict)
        problem = _problem({"type": "string", **one} if names else one, schema, branches)
        if problem is not None:
            raise InvalidRequest(source, f"{path or 'the schema'}: {problem}")
    check_size(schema, source)


def _problem(schema: Any, root: Any, found: Branches) -> str | None:
    """Why the compiler would not follow this schema itself, without its subschemas."""
    if isinstance(schema, bool):
        return None if schema else "false allows no value"
    if not isinstance(schema, dict):
        return "must be an object or true"
    for keyword in schema:
        if keyword in UNSUPPORTED:
            return f"{keyword} cannot be enforced; leave it out, and check it in the answer"
    return (
        _problem_of_combinations(schema, root, found)
        or _problem_of_types(schema)
        or _problem_of_strings(schema)
        or _problem_of_objects(schema)
    )


def _problem_of_values(schema: Schema) -> str | None:
    """Values of a wrong type, which the compiler or the other checks would stumble over."""
    for keyword in (
        "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"
    ):  # fmt: skip
        value = schema.get(keyword, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            return f"{keyword} must be an integer from 0 on"
    for keyword, kind in (("properties", dict), ("patternProperties", dict), ("required", list)):
        if not isinstance(schema.get(keyword, kind()), kind):
            return f"{keyword} must be {'an object' if kind is dict else 'a list'}"
    for keyword, values in (("required", schema.get("required", ())), ("type", types_of(schema))):
        if not all(isinstance(one, str) for one in values):
            return f"{keyword} must have texts only"
    if not isinstance(schema.get("enum", []), list):
        return "enum must be a list"
    if isinstance(schema.get("items"), list):
        return "items must be a schema; use prefixItems for a list of schemas"
    return None


def _problem_of_combinations(schema: Schema, root: Any, found: Branches) -> str | None:
    alone = [keyword for keyword in ALONE if keyword in schema]
    if not alone:
        return None
    others = [
        keyword
        for keyword in schema
        if keyword in TYPE_OF_KEYWORD or keyword in (*ALONE, "enum", "const", "type")
    ]
    if len(others) > 1:
        return f"{others[0]} beside {others[1]} cannot be enforced; write it into one schema"
    if "$ref" in schema:
        return _problem_of_reference(schema, root)
    branches = schema[alone[0]]
    if not isinstance(branches, list) or not branches:
        return f"{alone[0]} must be a list of schemas"
    if alone[0] == "allOf" and len(branches) > 1:
        return "allOf of several schemas cannot be enforced; merge them into one"
    if alone[0] == "oneOf":
        return _problem_of_exclusion(branches, found)
    return None


def _problem_of_exclusion(branches: list[Any], found: Branches) -> str | None:
    try:
        exclusive = found.exclude_each_other(branches)
    except TooManyValues:
        return "the branches of oneOf list too many values to be told apart; use anyOf"
    if not exclusive:
        return (
            "the branches of oneOf must exclude each other by their types, or by a required "
            "property with different values (const or enum); use anyOf if several may match"
        )
    return None


def _problem_of_reference(schema: Schema, root: Any) -> str | None:
    """References to themselves pass: the compiler finds that they allow no output."""
    reference = schema["$ref"]
    if not isinstance(reference, str) or resolved(reference, root) is None:
        return f"$ref {str(reference)[:100]!r} is not within this schema; use #/$defs/..."
    return None


def _problem_of_types(schema: Schema) -> str | None:
    types = types_of(schema)
    for keyword, of in TYPE_OF_KEYWORD.items():
        if keyword not in schema or ("enum" in schema or "const" in schema):
            continue
        numeric = of == "number" and "integer" in types
        if of not in types and not numeric:
            return f"{keyword} needs a type: {of}"
    if ("enum" in schema or "const" in schema) and (
        extra := [one for one in TYPE_OF_KEYWORD if one in schema]
    ):
        return f"{extra[0]} beside enum or const cannot be enforced; leave it out"
    return None


def _problem_of_strings(schema: Schema) -> str | None:
    if "format" in schema and schema["format"] not in FORMATS:
        return f"format {str(schema['format'])[:100]!r} cannot be enforced; known are {FORMATS}"
    shapes = [one for one in ("pattern", "format") if one in schema]
    bounds = [one for one in ("minLength", "maxLength") if one in schema]
    if len(shapes + bounds) > 1 and shapes:
        return f"{shapes[0]} beside {(shapes[1:] + bounds)[0]} cannot be enforced; give one of them"
    return None


def _problem_of_objects(schema: Schema) -> str | None:
    properties = schema.get("properties", {})
    if len(properties) > MAX_PROPERTIES:
        return f"has more than {MAX_PROPERTIES} properties"
    for name in schema.get("required", ()):
        if name not in properties:
            return f"required property {str(name)[:100]!r} is not among properties; declare it"
    patterned = [one for one in ("patternProperties", "propertyNames") if one in schema]
    if not patterned:
        return None
    named = [one for one in ("properties", "required") if one in schema]
    if len(patterned) + len(named) > 1:
        return f"{patterned[0]} beside {(patterned[1:] + named)[0]} cannot be enforced"
    if len(schema.get("patternProperties", ())) > 1:
        return "patternProperties with several patterns cannot be enforced"
    return None
