"""What a request demands of its output's text, and the checks of it that need no tokenizer.

What only the compiler notices is found by `engine.grammar.compiler.Grammars.check`.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.errors import InvalidRequest

Kind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]

MAX_BYTES = 65_536
MAX_EBNF = 16_384
"""Signs of a grammar in EBNF; llguidance's reading of it, in Python, takes 0.2 s for so many."""
MAX_CHOICES = 1024
_JSON_OBJECT = '{"type":"object","additionalProperties":true}'


@dataclass(frozen=True, slots=True)
class OutputGrammar:
    """The texts that a request's output may be."""

    kind: Kind
    text: str = ""
    """By kind: a JSON schema, a regular expression, a JSON list of choices, or a grammar in EBNF
    (GBNF's dialect) whose root rule is `root`."""
    source: str = field(default="structured_outputs", compare=False)
    """The client's field that it comes from, named in errors."""

    def invalid(self, problem: str) -> InvalidRequest:
        return InvalidRequest(self.source, problem)

    @property
    def schema(self) -> str:
        """The JSON schema of the two JSON kinds."""
        return _JSON_OBJECT if self.kind == "json_object" else self.text

    @property
    def choices(self) -> list[str]:
        choices: list[str] = json.loads(self.text)
        return choices


def check_length(grammar: OutputGrammar) -> None:
    """The first of the checks, and the only one that an event loop has time for."""
    if len(grammar.text) > MAX_BYTES or len(grammar.text.encode()) > MAX_BYTES:
        raise grammar.invalid(f"is larger than {MAX_BYTES} bytes; simplify it")


def check_grammar(grammar: OutputGrammar) -> None:
    """Raises InvalidRequest naming the client's field."""
    check_length(grammar)
    if grammar.kind in ("regex", "grammar") and not grammar.text.strip():
        raise grammar.invalid("is empty; give a pattern that some text matches")
    if grammar.kind == "grammar" and len(grammar.text) > MAX_EBNF:
        raise grammar.invalid(f"has more than {MAX_EBNF} signs; simplify it")
    if grammar.kind == "choice":
        _check_choices(grammar)


def _check_choices(grammar: OutputGrammar) -> None:
    try:
        choices: Any = json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise grammar.invalid(f"is not JSON: {error}") from None
    if not isinstance(choices, list) or not all(isinstance(one, str) and one for one in choices):
        raise grammar.invalid("must be a list of texts that are not empty")
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise grammar.invalid(f"must have 1 to {MAX_CHOICES} choices, got {len(choices)}")
