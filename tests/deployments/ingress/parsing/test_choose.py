"""The parser that a config and a request get."""

from functools import cache

import pytest
from pydantic import TypeAdapter

from cluster.built_in_models import TARGET, model_path
from cluster.config import TargetConfig
from deployments.ingress.parsing.choose import OutputParsers
from deployments.ingress.parsing.parser import FormatParser
from deployments.ingress.requests.tools import Tool, ToolChoice, ToolUse
from deployments.ingress.tokenizer import Tokens
from engine.errors import InvalidRequest
from tests.deployments.ingress.parsing.test_formats import PARIS, parse, summary

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOLS = [
    Tool.model_validate({"type": "function", "function": {"name": name, "parameters": PARAMETERS}})
    for name in ("get_weather", "search", "now")
]


@cache
def tokens() -> Tokens:
    return Tokens(model_path(TARGET))


def parsers(tool_parser: str | None = None, reasoning_parser: str | None = None) -> OutputParsers:
    given = {"tool_parser": tool_parser, "reasoning_parser": reasoning_parser}
    return OutputParsers(TargetConfig.model_validate(given), tokens())


def use(choice: object = "auto", parallel: bool = True) -> ToolUse:
    return ToolUse.of(TOOLS, TypeAdapter(ToolChoice).validate_python(choice), parallel)


def made(chosen: OutputParsers, wanted: ToolUse, prompt: str = "") -> FormatParser:
    parser = chosen.make(wanted, tokens().encode_blocking(prompt))
    assert parser is not None
    return parser


def test_without_tools_and_reasoning_nothing_is_parsed() -> None:
    assert parsers("hermes").make(ToolUse(), []) is None
    assert parsers("hermes").make(use("none"), []) is None


def test_auto_without_a_parser_is_refused_and_required_is_not() -> None:
    with pytest.raises(InvalidRequest, match=r"tool_choice: auto needs target\.tool_parser"):
        parsers().check(use())
    parsers("hermes").check(use())
    for text, choice in (
        (f'[{{"name": "{PARIS[0]}", "parameters": {PARIS[1]}}}]', "required"),
        (PARIS[1], {"type": "function", "function": {"name": "get_weather"}}),
    ):
        parsers().check(use(choice))
        assert summary(parse(made(parsers(), use(choice)), [text])) == ("", "", [PARIS])


@pytest.mark.parametrize(
    ("name", "prompt", "text"),
    [
        ("qwen3", "assistant\n<think>\n", "Hm.\n</think>\n\nYes."),
        ("qwen3", "assistant\n", "<think>\nHm.\n</think>\n\nYes."),
        ("deepseek_r1", "assistant\n", "Hm.</think>Yes."),
    ],
)
def test_reasoning_may_be_opened_by_the_prompt(name: str, prompt: str, text: str) -> None:
    parser = made(parsers(None, name), ToolUse(), prompt)
    assert summary(parse(parser, [text])) == ("Hm.", "Yes.", [])


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1"])
def test_an_output_of_a_form_has_no_reasoning(name: str) -> None:
    """The form begins with the first token, also after a prompt that opens the reasoning."""
    prompt = tokens().encode_blocking("assistant\n<think>\n")
    assert parsers("hermes", name).make(use("none"), prompt, has_form=True) is None
