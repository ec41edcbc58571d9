"""Bodies as JSON, whatever their texts are."""

import asyncio
import json
from typing import Any

import pytest

from deployments.ingress.answers import json_text


@pytest.mark.parametrize("text", ["é😀", "\ud800", "a\udfffb", '\\"\x00'])
def test_any_text_of_a_client_can_be_returned_to_it(text: str) -> None:
    """Half surrogate pairs made responses that return `metadata` fail with 500."""
    body: dict[str, Any] = {"metadata": {"a": text, text: [text]}}
    assert json.loads(asyncio.run(json_text.encode(body)).decode()) == body
    event = asyncio.run(json_text.in_ascii(body))
    assert event.isascii()
    assert json.loads(event) == body


def test_numbers_that_json_does_not_have_are_null() -> None:
    given = {"a": [float("nan"), 1.5], "b": {"c": float("inf")}, "d": "NaN"}
    assert json_text.without_infinities(given) == {"a": [None, 1.5], "b": {"c": None}, "d": "NaN"}
