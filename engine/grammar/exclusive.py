"""Whether the branches of a oneOf exclude each other, as the compiler takes each for an anyOf."""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from engine.grammar.schema_words import Schema, followed, types_of

MAX_PAIRS = 2016
"""Pairs of branches that are compared in a whole schema: those of 64 branches of one oneOf."""
MAX_LOOKUPS = 500_000
"""Listed values that are looked up in all pairs of a schema: some tens of milliseconds."""

Values = frozenset[str]
"""As canonical JSON. Python hashes texts with a secret; of numbers, a client could choose thousands
with the same hash, and each comparison of two lists of them would take seconds."""


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


class TooManyValues(Exception):
    """Comparing the values that the branches of a schema list takes too long."""


class Branches:
    """The branches within one schema. What is found of each is kept: many references may lead to
    one long list of values."""

    def __init__(self, root: Any) -> None:
        self._root = root
        # By the identity of parts of `root`, which lives on.
        self._values: dict[int, Values | None] = {}
        self._branches: dict[int, _Branch] = {}
        self._exclusive: dict[tuple[int, int], bool] = {}
        self._lookups = 0

    def exclude_each_other(self, schemas: Sequence[Any]) -> bool:
        branches = [followed(schema, self._root) for schema in schemas]
        if not all(isinstance(one, dict) for one in branches):
            return len(schemas) < 2
        return all(self._are_exclusive(one, other) for one, other in combinations(branches, 2))

    def _are_exclusive(self, one: Schema, other: Schema) -> bool:
        key = (id(one), id(other))
        if key not in self._exclusive:
            self._exclusive[key] = self._differ(self._branch(one), self._branch(other))
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

    def _differ(self, one: _Branch, other: _Branch) -> bool:
        if one.values is not None and other.values is not None:
            return self._are_disjoint(one.values, other.values)
        if one.types and other.types and one.types.isdisjoint(other.types):
            return True
        shared = one.constants.keys() & other.constants.keys()
        pairs = [(one.constants[name], other.constants[name]) for name in shared]
        pairs.sort(key=lambda pair: min(map(len, pair)))
        return any(self._are_disjoint(*pair) for pair in pairs)

    def _are_disjoint(self, one: Values, other: Values) -> bool:
        self._lookups += min(len(one), len(other))
        if self._lookups > MAX_LOOKUPS:
            raise TooManyValues
        return one.isdisjoint(other)


def _values(schema: Any) -> Values | None:
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return frozenset([_canonical(schema["const"])])
    values = schema.get("enum")
    return frozenset(map(_canonical, values)) if isinstance(values, list) else None


def _canonical(value: Any) -> str:
    """The same text for equal values."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    """The value with 1 for 1.0."""
    match value:
        case list():
            return [_with_whole_numbers(one) for one in value]
        case dict():
            return {name: _with_whole_numbers(one) for name, one in value.items()}
        case float() if value.is_integer():
            return int(value)
        case _:
            return value
