"""Branches of a oneOf that exclude each other, by values, types and required properties."""

import time
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.grammar import exclusive
from engine.grammar.exclusive import Branches
from engine.grammar.json_schema import check_schema
from tests.engine.grammar.hostile import SAME_HASH, branches

LONG = {"enum": list(range(5000))}
OTHERS = {"enum": list(range(4999, 10_000))}


@pytest.mark.parametrize(
    ("several", "exclude"),
    [
        ([{"const": 1}, {"const": 2}], True),
        ([{"const": 1}, {"enum": [1, 2]}], False),
        ([{"type": "integer"}, {"type": "string"}], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"$ref": "#/$defs/long"}, {"const": 5000}], True),
        ([{"$ref": "#/$defs/long"}, {"$ref": "#/$defs/others"}], False),
        ([{"$ref": "#/$defs/missing"}, {"const": 1}], False),
        ([True], True),
    ],
)
def test_by_values_types_and_references(several: list[Any], exclude: bool) -> None:
    found = Branches({"$defs": {"long": LONG, "others": OTHERS}})
    assert found.exclude_each_other(several) is exclude
    assert found.exclude_each_other(several) is exclude, "when it is known already"


def test_a_long_list_is_read_once_however_many_refer_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema of 64 KB with hundreds of references to such lists held the event loop up."""
    read: list[Any] = []
    original = exclusive._values

    def counted(schema: Any) -> Any:
        read.append(schema)
        return original(schema)

    monkeypatch.setattr(exclusive, "_values", counted)
    many = {
        "anyOf": [{"oneOf": [{"$ref": "#/$defs/long"}, {"const": -1 - n}]} for n in range(500)],
        "$defs": {"long": LONG},
    }
    check_schema(many, "field")
    assert read.count(LONG) == 1
    properties = {f"p{n}": {"$ref": "#/$defs/long"} for n in range(200)}
    tagged = {
        "type": "object",
        "properties": {**properties, "tag": {"const": 1}},
        "required": [*properties, "tag"],
    }
    read.clear()
    check_schema(
        {
            "oneOf": [tagged, {**tagged, "properties": {**properties, "tag": {"const": 2}}}],
            "$defs": {"long": LONG},
        },
        "field",
    )
    assert read.count(LONG) == 1


def test_values_that_python_hashes_alike_are_compared_as_fast_as_others() -> None:
    """Each pair of branches took 10 ms, all together 25 s."""

    def seconds(step: int) -> float:
        begun = time.process_time()
        check_schema(branches(step), "field")
        return time.process_time() - begun

    assert seconds(SAME_HASH) < 1 + 10 * seconds(2**61)


def test_more_values_than_can_be_compared_are_refused() -> None:
    branch = {"type": "object", "required": ["a"]}
    schema = {
        "oneOf": [
            {**branch, "properties": {"a": {"enum": list(range(300 * n, 300 * n + 300))}}}
            for n in range(64)
        ]
    }
    with pytest.raises(InvalidRequest, match="too many values to be told apart; use anyOf"):
        check_schema(schema, "field")


@pytest.mark.parametrize(
    ("one", "other", "exclude"),
    [(1, 1.0, False), (1, True, True), ([1.0], [1], False), (1e300, 10**300, True), ("1", 1, True)],
)
def test_equal_values(one: Any, other: Any, exclude: bool) -> None:
    assert Branches({}).exclude_each_other([{"const": one}, {"const": other}]) is exclude
