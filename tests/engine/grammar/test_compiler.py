"""Requests with the same grammar share its compiled form, and nothing of each other."""

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import InvalidRequest
from engine.grammar.compiler import Grammars, definition
from engine.grammar.spec import MAX_BYTES, OutputGrammar

PATTERNS: dict[str, object] = {f"^(a|b)*{number}$": {} for number in range(101)}
REFUSED = OutputGrammar("json_schema", " " * (MAX_BYTES + 1), "response_format")


class Prompt:
    """What a request has while its grammar is checked."""


async def refused(grammars: Grammars, grammar: OutputGrammar, prompt: Prompt) -> str:
    with pytest.raises(InvalidRequest) as error:
        await grammars.check(grammar)
    assert prompt
    return error.value.field


@pytest.mark.usefixtures("loop")
async def test_a_refused_grammar_names_the_field_of_each_request_and_keeps_none_of_them() -> None:
    grammars = Grammars(Path("unread"), vocab_size=8)
    prompts = [Prompt(), Prompt()]
    kept = [weakref.ref(prompt) for prompt in prompts]
    assert await refused(grammars, REFUSED, prompts.pop()) == "response_format"
    other = replace(REFUSED, source="structured_outputs")
    assert await refused(grammars, other, prompts.pop()) == "structured_outputs"
    assert grammars.has(REFUSED)
    gc.collect()
    assert [one() for one in kept] == [None, None]


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("grammar", 'root ::= "a"\nroot ::= "b"', "defined twice"),
        ("grammar", "root ::= [a&&b]", "need a backslash"),
        ("json_schema", '{"x-guidance": {"lenient": true}, "type": "string"}', "x-guidance"),
        ("json_schema", '{"x-guid\\u0061nce": {"lenient": true}, "type": "string"}', "x-guidance"),
        ("json_schema", json.dumps({"items": {"maxItems": 10**6}}), "more than 20000 together"),
        (
            "json_schema",
            json.dumps({"maxItems": 10**6, "default": {"minItems": -(10**6)}}),
            "more than 20000 together",
        ),
        (
            "json_schema",
            json.dumps({"anyOf": [{"patternProperties": PATTERNS}]}),
            "patternProperties: more than 100",
        ),
    ],
)
def test_what_the_compiler_would_read_otherwise_or_for_long_is_refused(
    kind: str, text: str, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        definition(OutputGrammar(kind, text, "structured_outputs"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ['root ::= "[" "--" | "&&"', "# [a&&b]\nroot ::= [a&-]"])
def test_signs_that_only_look_like_operations_on_classes_are_allowed(text: str) -> None:
    assert definition(OutputGrammar("grammar", text, "structured_outputs"))


def test_an_escaped_sign_of_a_grammar_is_itself() -> None:
    escaped = OutputGrammar("grammar", r'root ::= "\u00e9ad" [\u005dx] "\u000a\\u0041"', "grammar")
    plain = OutputGrammar("grammar", r'root ::= "éad" [\]x] "\n\\u0041"', "grammar")
    assert definition(escaped).replace(r"\x0a", r"\n") == definition(plain)
