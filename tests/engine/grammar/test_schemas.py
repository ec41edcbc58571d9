"""Whatever is written under a schema is valid by it; a schema that cannot be kept to is refused."""

import json
import re
from typing import Any

import numpy as np
import pytest

from cluster.built_in_models import TARGET, model_path
from engine.errors import InvalidRequest
from engine.grammar.compiler import Grammars
from engine.grammar.spec import MAX_BYTES, OutputGrammar
from engine.tokenizer import load_tokenizer
from tests.engine.grammar.random_outputs import VOCAB, random_output
from tests.engine.grammar.schemas import FOLLOWED, REFUSED, validator

OUTPUTS = 24


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(model_path(TARGET), VOCAB)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(model_path(TARGET))


def outputs(grammars: Grammars, tokenizer: Any, grammar: OutputGrammar) -> list[str]:
    compiled = grammars.compile(grammar).result()
    rng = np.random.default_rng(0)
    drawn = [random_output(compiled, rng) for _ in range(OUTPUTS)]
    texts = [tokenizer.decode(tokens) for tokens in drawn if tokens is not None]
    assert len(texts) >= OUTPUTS // 8, "hardly any output ends"
    return texts


@pytest.mark.parametrize("name", FOLLOWED)
def test_every_output_is_valid_by_its_schema(name: str, grammars: Grammars, tokenizer: Any) -> None:
    schema = FOLLOWED[name]
    for text in outputs(grammars, tokenizer, OutputGrammar("json_schema", json.dumps(schema))):
        validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("problem", REFUSED)
def test_a_schema_that_cannot_be_kept_to_is_refused(problem: str, grammars: Grammars) -> None:
    grammar = OutputGrammar("json_schema", json.dumps(REFUSED[problem]), "response_format")
    with pytest.raises(InvalidRequest, match=re.escape(problem)) as refusal:
        grammars.compile(grammar).result()
    assert refusal.value.field == "response_format"
    assert "/project/" not in str(refusal.value)


def test_json_objects_are_objects(grammars: Grammars, tokenizer: Any) -> None:
    for text in outputs(grammars, tokenizer, OutputGrammar("json_object")):
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "pattern",
    ["^ab*$", "[a-z]{3}-[0-9]{2,4}", r"\d+(\.\d{1,2})? (USD|EUR)", "(yes|no)( sir)?", "é[^b]c?"],
)
def test_outputs_match_their_regular_expression(
    pattern: str, grammars: Grammars, tokenizer: Any
) -> None:
    for text in outputs(grammars, tokenizer, OutputGrammar("regex", pattern)):
        assert re.fullmatch(pattern, text)


def test_every_choice_can_be_made_and_no_other(grammars: Grammars, tokenizer: Any) -> None:
    choices = ["yes", "yesterday", 'no "no"\n', "\\é😀"]
    texts = outputs(grammars, tokenizer, OutputGrammar("choice", json.dumps(choices)))
    assert set(texts) == set(choices)


def test_outputs_are_of_their_ebnf_grammar(grammars: Grammars, tokenizer: Any) -> None:
    grammar = OutputGrammar("grammar", 'root ::= "(" root ")" | "x"')
    for text in outputs(grammars, tokenizer, grammar):
        assert re.fullmatch(r"\(*x\)*", text)
        assert text.count("(") == text.count(")")


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("json_schema", "{", "EOF while parsing"),
        ("json_schema", "[" * 20_000, "recursion limit"),
        ("json_schema", " " * MAX_BYTES + "{}", "larger than"),
        ("regex", "(", "unclosed group"),
        ("regex", "(a)\\1", "backreferences are not supported"),
        ("regex", " ", "is empty"),
        ("regex", f"a{{{'9' * 5000}}}", "invalid regex"),
        ("grammar", "root ::= x", "'x' not found"),
        ("grammar", "root ::= (" + "(" * 10_000, "cannot be compiled"),
        ("grammar", "root ::= (" + "(" * 20_000, "has more than 16384 signs"),
        ("grammar", "root ::= root", "no token can begin one"),
        ("choice", "[" * 20_000, "is not JSON"),
        ("choice", "[]", "1 to 1024 choices"),
        ("choice", '["a", 1]', "must be a list of texts"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_refused(
    kind: Any, text: str, problem: str, grammars: Grammars
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(problem)):
        grammars.compile(OutputGrammar(kind, text)).result()


def test_special_tokens_are_never_text(grammars: Grammars) -> None:
    """Clients do not receive them."""
    compiled = grammars.compile(OutputGrammar("json_schema", '{"type": "string"}')).result()
    specials = {0, 1, 2, 3}
    for seed in range(20):
        output = random_output(compiled, np.random.default_rng(seed), longest=100)
        assert specials.isdisjoint(output or [])
