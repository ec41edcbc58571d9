"""Refuses JSON schemas that the compiler would follow only in part.

xgrammar ignores assertions that it does not know, so an output could contradict its schema. Each
rule here was found with random outputs (tests/engine/grammar/test_schemas.py). Keywords that the
standard does not define are annotations, and are ignored as it says.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from engine.errors import InvalidRequest

MAX_REPETITIONS = 512
"""Of all bounded lengths and repetitions together: each is a state, which takes up to 7 ms to
compile."""
_MOST_STATES = 128
"""Of one repetition: xgrammar counts longer ones without a state for each."""
MAX_PROPERTIES = 256
"""Of one object; the time to compile grows with the square of those that are optional."""

_UNSUPPORTED = {
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
_TYPE_OF_KEYWORD = {
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
_ALONE = ("$ref", "anyOf", "oneOf", "allOf")
"""Beside one of these the compiler ignores every other assertion."""
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
_REPETITION = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")

Schema = Mapping[str, Any]


def repetitions(pattern: str) -> int:
    """What all bounded repetitions of a regular expression or a grammar add up to."""
    bounds = [int(most or least) for least, most in _REPETITION.findall(pattern)]
    return sum(min(bound, _MOST_STATES) for bound in bounds)


def check_schema(schema: Any, source: str) -> None:
    """Raises InvalidRequest for a schema that could not be followed exactly. `source`: the client's
    field."""
    repeated = 0
    for path, one in subschemas(schema):
        if isinstance(one, dict) and (problem := _problem_of_values(one)) is not None:
            raise InvalidRequest(source, f"{path or 'the schema'}: {problem}")
    for path, one in subschemas(schema):
        names = path.endswith("/propertyNames") and isinstance(one, dict)
        problem = _problem({"type": "string", **one} if names else one, schema)
        if problem is not None:
            raise InvalidRequest(source, f"{path or 'the schema'}: {problem}")
        if isinstance(one, dict):
            length = one["maxLength"] if "maxLength" in one else one.get("minLength", 0)
            repeated += min(length, _MOST_STATES) + repetitions(str(one.get("pattern", "")))
    if repeated > MAX_REPETITIONS:
        raise InvalidRequest(
            source,
            f"lengths and repetitions of texts add up to {repeated} (one counts for at most "
            f"{_MOST_STATES}), and {MAX_REPETITIONS} can be compiled in time; lower or leave out "
            "some maxLength",
        )


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


def _problem(schema: Any, root: Any) -> str | None:
    """Why the compiler would not follow this schema itself, without its subschemas."""
    if isinstance(schema, bool):
        return None if schema else "false allows no value"
    if not isinstance(schema, dict):
        return "must be an object or true"
    for keyword in schema:
        if keyword in _UNSUPPORTED:
            return f"{keyword} cannot be enforced; leave it out, and check it in the answer"
    return (
        _problem_of_combinations(schema, root)
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
    for keyword, values in (("required", schema.get("required", ())), ("type", _types(schema))):
        if not all(isinstance(one, str) for one in values):
            return f"{keyword} must have texts only"
    if not isinstance(schema.get("enum", []), list):
        return "enum must be a list"
    if isinstance(schema.get("items"), list):
        return "items must be a schema; use prefixItems for a list of schemas"
    return None


def _problem_of_combinations(schema: Schema, root: Any) -> str | None:
    alone = [keyword for keyword in _ALONE if keyword in schema]
    if not alone:
        return None
    others = [
        keyword
        for keyword in schema
        if keyword in _TYPE_OF_KEYWORD or keyword in (*_ALONE, "enum", "const", "type")
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
    if alone[0] == "oneOf" and not _exclude_each_other(branches, root):
        return (
            "the branches of oneOf must exclude each other by their types, or by a required "
            "property with different values (const or enum); use anyOf if several may match"
        )
    return None


def _problem_of_reference(schema: Schema, root: Any) -> str | None:
    """References to themselves pass: the compiler finds that they allow no output."""
    reference = schema["$ref"]
    if not isinstance(reference, str) or _resolved(reference, root) is None:
        return f"$ref {str(reference)[:100]!r} is not within this schema; use #/$defs/..."
    return None


def _problem_of_types(schema: Schema) -> str | None:
    types = _types(schema)
    for keyword, of in _TYPE_OF_KEYWORD.items():
        if keyword not in schema or ("enum" in schema or "const" in schema):
            continue
        numeric = of == "number" and "integer" in types
        if of not in types and not numeric:
            return f"{keyword} needs a type: {of}"
    if ("enum" in schema or "const" in schema) and (
        extra := [one for one in _TYPE_OF_KEYWORD if one in schema]
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


def _exclude_each_other(branches: Sequence[Any], root: Any) -> bool:
    schemas = [_followed(one, root) for one in branches]
    return all(_exclusive(one, other, root) for one, other in combinations(schemas, 2))


def _exclusive(one: Any, other: Any, root: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not any(value in others for value in values)
    types, other_types = set(_types(one)), set(_types(other))
    for both in (types, other_types):
        if "number" in both:
            both.add("integer")
    if types and other_types and not types & other_types:
        return True
    shared = set(one.get("required", ())) & set(other.get("required", ()))
    for name in shared:
        mine, theirs = (_values_of(branch, name, root) for branch in (one, other))
        if mine and theirs and not any(value in theirs for value in mine):
            return True
    return False


def _values_of(schema: Schema, name: str, root: Any) -> list[Any] | None:
    """The values that the property may have, if they are listed."""
    schema = _followed(schema.get("properties", {}).get(name), root)
    return _values(schema) if isinstance(schema, dict) else None


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _types(schema: Schema) -> list[str]:
    types = schema.get("type", [])
    return list(types) if isinstance(types, list) else [types]


def _followed(schema: Any, root: Any) -> Any:
    """The schema itself, or the one that it refers to."""
    for _ in range(16):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = _resolved(schema["$ref"], root)
    return None


def _resolved(reference: str, root: Any) -> Any:
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
