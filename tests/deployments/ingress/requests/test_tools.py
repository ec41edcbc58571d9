"""Tools in a conversation: what the template is given, what is enforced, what clients read."""

import asyncio
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from deployments.ingress.requests.completions import ChatRequest
from deployments.ingress.requests.tools import ToolUse, call_schema
from deployments.ingress.tokenizer import Tokens
from engine.errors import InvalidRequest
from tests.deployments.ingress.scripted import TEMPLATE, with_tool_template

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of the next days.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"$ref": "#/$defs/Place"}, "then": {"$ref": "#"}},
            "required": ["place"],
            "additionalProperties": False,
            "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}}}},
        },
        "strict": True,
    },
}
NOW = {"type": "function", "function": {"name": "now"}}


def chat(**fields: Any) -> ChatRequest:
    messages = [{"role": "user", "content": "Weather?"}]
    return ChatRequest.model_validate({"model": "target", "messages": messages, **fields})


async def rendered(tokens: Tokens, request: ChatRequest) -> str:
    messages = [message.for_template for message in request.messages]
    tools = [tool.for_template for tool in request.tools]
    return tokens.decode(await tokens.encode_chat(messages, tools))


@pytest.mark.parametrize(("knows", "role"), [("", "system"), ("{# developer #}", "developer")])
def test_the_template_gets_tools_calls_and_results(knows: str, role: str, tmp_path: Path) -> None:
    request = chat(
        tools=[NOW],
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "reasoning": "Hm.",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "now", "arguments": '{"zone": 1}'},
                    },
                    {
                        "id": "call_2",
                        "type": "function",
                        "function": {"name": "now", "arguments": "broken"},
                    },
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "content": [{"type": "text", "text": "9:00"}],
            },
        ],
    )
    prompt = asyncio.run(rendered(Tokens(with_tool_template(tmp_path, knows + TEMPLATE)), request))
    assert prompt == (
        '<|tools|>{"type": "function", "function": {"name": "now"}}'
        f"<|{role}|>Be brief.<|user|>Weather?"
        '<|assistant|>[now {"zone": 1}][now "broken"](Hm.)<|tool|>9:00@call_1<|assistant|>'
    )


def schema(**fields: Any) -> dict[str, Any]:
    return call_schema(chat(tools=[WEATHER, NOW], **fields).tool_use)


def weather(place: dict[str, Any]) -> dict[str, Any]:
    return {"name": "get_weather", "parameters": {"place": place}}


def test_required_calls_are_a_list_of_calls_of_the_tools() -> None:
    required = schema(tool_choice="required")
    then = {"name": "get_weather", "parameters": {"place": {}, "then": {"place": {"city": "Rome"}}}}
    jsonschema.validate([weather({"city": "Paris"}), {"name": "now", "parameters": {}}], required)
    jsonschema.validate([then], required)
    for wrong in (
        [],
        [{"name": "other", "parameters": {}}],
        [{"name": "now"}],
        [weather({"city": 1})],
        [{"name": "get_weather", "parameters": {"place": {}, "then": {}}}],
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, required)


def test_beside_a_schema_of_the_answer_the_output_is_it_or_calls() -> None:
    answer = {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "at": {"$ref": "#/$defs/Time"}},
        "additionalProperties": False,
        "$defs": {"Time": {"type": "string"}},
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": answer}}
    either = schema(response_format=form)
    jsonschema.validate([weather({"city": "Paris"})], either)
    jsonschema.validate({"next": {"at": "9:00"}}, either)
    for wrong in ([], [weather({"city": 1})], {"next": {"at": 9}}, {"other": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, either)
    forced = schema(response_format=form, tool_choice="required")
    assert forced == schema(tool_choice="required"), "a call is no answer"


def test_a_named_function_is_its_arguments() -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    assert schema(tool_choice=choice) == WEATHER["function"]["parameters"]  # type: ignore[index]
    assert ToolUse.of([], None, True).choice == "none"
    assert chat(tools=[NOW]).tool_use.choice == "auto"


def test_a_schema_that_is_no_unicode_text_is_refused(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": {"enum": ["\ud800"]}}}
    tokens = Tokens(with_tool_template(tmp_path))
    with pytest.raises(InvalidRequest, match="no Unicode text"):
        asyncio.run(rendered(tokens, chat(tools=[tool])))
