"""Requests with the same grammar share its compiled form, and nothing of each other."""

import asyncio
import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import InvalidRequest
from engine.grammar.compiler import Grammars
from engine.grammar.spec import MAX_BYTES, OutputGrammar

REFUSED = OutputGrammar("json_schema", " " * (MAX_BYTES + 1), "response_format")


class Prompt:
    """What a request has while its grammar is checked."""


async def refused(grammars: Grammars, grammar: OutputGrammar, prompt: Prompt) -> str:
    with pytest.raises(InvalidRequest) as error:
        await grammars.check(grammar)
    assert prompt
    return error.value.field


def test_a_refused_grammar_names_the_field_of_each_request_and_keeps_none_of_them() -> None:
    async def main() -> None:
        grammars = Grammars(Path("unread"), vocab_size=8)
        prompts = [Prompt(), Prompt()]
        kept = [weakref.ref(prompt) for prompt in prompts]
        assert await refused(grammars, REFUSED, prompts.pop()) == "response_format"
        other = replace(REFUSED, source="structured_outputs")
        assert await refused(grammars, other, prompts.pop()) == "structured_outputs"
        assert grammars.has(REFUSED)
        gc.collect()
        assert [one() for one in kept] == [None, None]

    asyncio.run(main())
