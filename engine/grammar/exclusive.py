"""Whether the branches of a oneOf exclude each other, as the compiler takes each for an anyOf."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from engine.grammar.schema_words import Schema, followed, types_of

MAX_PAIRS = 2016
"""Of branches that are compared, in all of a schema: those of 64 branches of one oneOf."""

Values = frozenset[Any]


class _Branch(NamedTuple):
    types: frozenset[str]
    values: Values | None
    """The values that it lists; None: it lists none."""
    constants: Mapping[str, Values]
    """Those of the properties that it requires, where they are listed."""


def pairs_of_branches(schema: Any) -> int:
    """How many comparisons the oneOf of this schema itself takes."""
    branches = schema.get("oneOf") if isinstance(schema, dict) else None
    number = len(branches) if isinstance(branches, list) else 0
    return number * (number - 1) // 2


class Branches:
    """The branches within one schema. What is found of each is kept: many references may lead to
    one long list of values."""

    def __init__(self, root: Any) -> None:
        self._root = root
        # By the identity of parts of `root`, which lives on.
        self._values: dict[int, Values | None] = {}
        self._branches: dict[int, _Branch] = {}
        self._exclusive: dict[tuple[int, int], bool] = {}

    def exclude_each_other(self, schemas: Sequence[Any]) -> bool:
        branches = [followed(schema, self._root) for schema in schemas]
        if not all(isinstance(one, dict) for one in branches):
            return len(schemas) < 2
        return all(self._are_exclusive(one, other) for one, other in combinations(branches, 2))

    def _are_exclusive(self, one: Schema, other: Schema) -> bool:
        key = (id(one), id(other))
        if key not in self._exclusive:
            self._exclusive[key] = _exclusive(self._branch(one), self._branch(other))
        return self._exclusive[key]

    def _branch(self, schema: Schema) -> _Branch:
        if id(schema) not in self._branches:
            self._branches[id(schema)] = self._read(schema)
        return self._branches[id(schema)]

    def _read(self, schema: Schema) -> _Branch:
        # A reference may lead to what is no schema, and has not been checked as one.
        types = {one for one in types_of(schema) if isinstance(one, str)}
        if "number" in types:
            types.add("integer")
        properties, required = schema.get("properties"), schema.get("required")
        constants: dict[str, Values] = {}
        if isinstance(properties, dict) and isinstance(required, list):
            for name in required:
                if isinstance(name, str) and (values := self._listed(properties.get(name))):
                    constants[name] = values
        return _Branch(frozenset(types), self._listed(schema), constants)

    def _listed(self, schema: Any) -> Values | None:
        one = followed(schema, self._root)
        if id(one) not in self._values:
            self._values[id(one)] = _values(one)
        return self._values[id(one)]


def _exclusive(one: _Branch, other: _Branch) -> bool:
    if one.values is not None and other.values is not None:
        return one.values.isdisjoint(other.values)
    if one.types and other.types and one.types.isdisjoint(other.types):
        return True
    shared = one.constants.keys() & other.constants.keys()
    return any(one.constants[name].isdisjoint(other.constants[name]) for name in shared)


def _values(schema: Any) -> Values | None:
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return frozenset([_hashable(schema["const"])])
    values = schema.get("enum")
    return frozenset(map(_hashable, values)) if isinstance(values, list) else None


def _hashable(value: Any) -> Any:
    """Equal for equal values, so that long lists need no comparison of each with each."""
    if isinstance(value, list):
        return (list, *map(_hashable, value))
    if isinstance(value, dict):
        return (dict, frozenset((name, _hashable(one)) for name, one in value.items()))
    return value
