"""Tools in a conversation: what the template is given, what is enforced, what clients read."""

import asyncio
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from cluster.built_in_models import TARGET, model_path
from deployments.ingress.answers.choices import Choice, OutputToken, Piece
from deployments.ingress.answers.completion_bodies import ChatFormat, CollectedChoice
from deployments.ingress.parsing.formats import call_list, hermes, named_call, thinking
from deployments.ingress.parsing.parser import Format, FormatParser, OutputParser
from deployments.ingress.requests.completions import ChatRequest
from deployments.ingress.requests.tools import ToolUse, call_schema
from deployments.ingress.tokenizer import Tokens
from engine.protocol import Finish
from tests.deployments.ingress.parsing.test_formats import CALLS, PARIS
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


def test_without_parallel_calls_the_list_has_one() -> None:
    one = schema(tool_choice="required", parallel_tool_calls=False)
    jsonschema.validate([weather({})], one)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([weather({}), weather({})], one)


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


@dataclass
class ParsedChoice:
    """What a format reads of a choice."""

    parser: OutputParser | None
    index: int = 0
    statistics: dict[str, object] = field(default_factory=dict)


def streamed(form: ChatFormat, choice: ParsedChoice, texts: list[str]) -> list[ChatCompletionChunk]:
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "target"}
    chunks: list[ChatCompletionChunk] = []
    for number, text in enumerate(texts, 1):
        piece = piece_of(text, "stop" if number == len(texts) else None)
        for body in form.chunks(cast(Choice, choice), piece, first=not chunks):
            chunks.append(ChatCompletionChunk.model_validate({**head, "choices": [body]}))
    return chunks


def piece_of(text: str, finish: Finish | None) -> Piece:
    token = OutputToken(5, {"logprob": -0.5, "top": [], "rank": 0}, 0)
    return Piece(text=text, token_ids=(5,), tokens=(token,), produced=1, finish=finish)


REASONED = f"<think>Hm.</think>{CALLS[1][1]}"
EACH = [
    ([hermes], CALLS[0][1], "tool_calls"),
    ([hermes], CALLS[1][1], "tool_calls"),
    ([hermes], "No call.", "stop"),
    ([partial(thinking, opened=False), hermes], REASONED, "tool_calls"),
    ([call_list], CALLS[-1][1], "tool_calls"),
    ([partial(named_call, name="get_weather")], PARIS[1], "stop"),
]


@pytest.mark.parametrize(("formats", "text", "finish"), EACH)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_openais_client_reads_the_same_from_a_stream_and_a_whole(
    formats: list[Format], text: str, finish: str, size: int
) -> None:
    """With log-probabilities and token ids of every token, although text is held back."""
    form = ChatFormat(Tokens(model_path(TARGET)), alternatives=0, with_token_ids=True)
    named = finish == "stop" and "No" not in text

    def choice() -> ParsedChoice:
        return ParsedChoice(FormatParser(formats, named=named))

    texts = [text[at : at + size] for at in range(0, len(text), size)]
    chunks = streamed(form, choice(), texts)
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(chunk)
    read = state.get_final_completion().choices[0]
    collected = CollectedChoice()
    for number, part in enumerate(texts, 1):
        collected.add(piece_of(part, "stop" if number == len(texts) else None))
    body = form.full(cast(Choice, choice()), collected)
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "target"}
    whole = ChatCompletion.model_validate({**head, "choices": [body]}).choices[0]
    assert whole.finish_reason == read.finish_reason == finish
    assert (whole.message.content or "") == (read.message.content or "")
    assert getattr(whole.message, "reasoning", None) == getattr(read.message, "reasoning", None)
    calls = [
        [
            (call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls or []
            if call.type == "function"
        ]
        for message in (whole.message, read.message)
    ]
    assert calls[0] == calls[1]
    assert whole.logprobs is not None
    assert read.logprobs is not None
    assert len(whole.logprobs.content or []) == len(read.logprobs.content or []) == len(texts)
    ids = [one for chunk in chunks for one in chunk.choices[0].to_dict()["token_ids"]]  # type: ignore[attr-defined]  # vLLM's field
    assert len(ids) == len(texts)


def test_a_stream_of_calls_is_openais() -> None:
    form = ChatFormat(Tokens(model_path(TARGET)), alternatives=None, with_token_ids=False)
    chunks = streamed(form, ParsedChoice(FormatParser([hermes])), list(CALLS[1][1]))
    first, *contents = [one for chunk in chunks if (one := chunk.choices[0]).delta.content]
    assert first.delta.role == "assistant"
    assert not any(one.delta.role for one in contents)
    start, *others = [one for chunk in chunks if (one := chunk.choices[0]).delta.tool_calls]
    last = chunks[-1].choices[0]
    assert start.delta.tool_calls is not None
    call = start.delta.tool_calls[0]
    assert call.function is not None
    assert (call.index, call.type, call.function.name, call.function.arguments) == (
        0,
        "function",
        "get_weather",
        "",
    )
    assert call.id is not None
    assert call.id.startswith("call_")
    for one in others:
        assert one.delta.tool_calls is not None
        assert len(one.delta.tool_calls) == 1
        assert one.finish_reason is None
    assert last.delta.to_dict() == {}
    assert last.finish_reason == "tool_calls"
