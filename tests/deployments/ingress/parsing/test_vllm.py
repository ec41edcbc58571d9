"""vLLM's parsers behind our interface, and as an oracle of our own.

Importing vLLM takes some 8 s.
"""

import json
from collections.abc import Sequence

import pytest

from deployments.ingress.parsing.choose import OutputParser, VllmParsers
from tests.deployments.ingress.parsing.test_choose import made, parsers, tokens, use
from tests.deployments.ingress.parsing.test_formats import CALLS, PARIS, cuts, summary

QWEN3_CODER = (
    "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
NOT_FOR_VLLM = ('</tool_call>"', "}}}\n", '"now"}', "null")
"""It ends a call at a tag within a string, and refuses what we forgive."""
BOTH_UNDERSTAND = [
    (name, text)
    for name, text, _, _ in CALLS
    if name in ("hermes", "pythonic") and not any(part in text for part in NOT_FOR_VLLM)
]


def loaded(calls: Sequence[tuple[str, str]]) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


def streamed(parser: OutputParser, pieces: Sequence[str]) -> tuple[str, str, list[tuple[str, str]]]:
    found = []
    for piece in pieces:
        found += parser.push(piece, tokens().encode_blocking(piece, add_special_tokens=False))
    return summary([*found, *parser.finish()])


def test_unknown_parsers_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"target\.tool_parser = 'none_such'"):
        parsers("none_such")
    with pytest.raises(ValueError, match=r"target\.reasoning_parser = 'none_such'"):
        parsers("hermes", "none_such")


def test_vllms_parsers_serve_other_formats() -> None:
    chosen = parsers("qwen3_coder")
    _, content, calls = summary(made(chosen, use()).whole(QWEN3_CODER, []))
    assert content.strip() == "Let me see."
    assert loaded(calls) == loaded([PARIS])
    for pieces in cuts(QWEN3_CODER)[1::8]:
        _, content, calls = streamed(made(chosen, use()), pieces)
        assert content.strip() == "Let me see."
        assert loaded(calls) == loaded([PARIS])


def test_without_parallel_calls_only_the_first_is_kept() -> None:
    text = QWEN3_CODER + QWEN3_CODER.removeprefix("Let me see.")
    assert len(summary(made(parsers("qwen3_coder"), use()).whole(text, []))[2]) == 2
    parser = made(parsers("qwen3_coder"), use(parallel=False))
    assert loaded(summary(parser.whole(text, []))[2]) == loaded([PARIS])


@pytest.mark.parametrize(("name", "text"), BOTH_UNDERSTAND)
def test_our_parsers_find_what_vllms_find(name: str, text: str) -> None:
    vllm = VllmParsers(name, None, tokens().tokenizer).make(use(), []).whole(text, [])
    ours = made(parsers(name), use()).whole(text, [])
    assert loaded(summary(vllm)[2]) == loaded(summary(ours)[2])
