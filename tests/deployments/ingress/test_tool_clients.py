"""OpenAI's own client with tools and with the Responses API: it must notice nothing."""

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI
from openai.lib._tools import pydantic_function_tool
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses import FunctionToolParam, ResponseInputParam, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.deployments.ingress.parsing.test_formats import CALLS, PARIS
from tests.deployments.ingress.scripted import ScriptedReplicas, scripted, with_tool_template
from tests.deployments.local import within

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather?"}]
PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("get_weather", "search")
]
FUNCTIONS: list[FunctionToolParam] = [
    {"type": "function", "name": name, "parameters": PARAMETERS, "strict": None}
    for name in ("get_weather", "search")
]
TWO_CALLS = CALLS[1][1]
REASONED = f"<think>\nHm.\n</think>\n\n{TWO_CALLS}"
pytestmark = pytest.mark.usefixtures("loop")
ToolsApp = tuple[AsyncOpenAI, ScriptedReplicas]


class Weather(BaseModel):
    """The weather of the next days."""

    city: str
    days: int


@cache
def checkpoint() -> Path:
    return with_tool_template(Path(mkdtemp()))


def tools_app(
    text: str, path: Path | None = None, **target: Any
) -> AbstractAsyncContextManager[ToolsApp]:
    return scripted(path or checkpoint(), text, **{"tool_parser": "hermes", **target})


@pytest.mark.parametrize("mode", ["auto", "required"])
@within(tools_app, json.dumps([{"name": "search", "parameters": {}}]))
async def test_only_allowed_tools_are_shown_and_called(app: ToolsApp, mode: str) -> None:
    client, replicas = app
    some: Any = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": mode,
            "tools": [{"type": "function", "function": {"name": "search"}}],
        },
    }
    of_responses: Any = {
        "type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "search"}]
    }  # fmt: skip
    await client.chat.completions.create(
        model="target", messages=ASK, tools=TOOLS, tool_choice=some
    )
    response = await client.responses.create(
        model="target", input="Weather?", tools=FUNCTIONS, tool_choice=of_responses
    )
    assert response.tool_choice.to_dict() == of_responses  # type: ignore[union-attr]
    if mode == "auto":
        replicas.text = TWO_CALLS
        answer = await client.chat.completions.create(
            model="target", messages=ASK, tools=TOOLS, tool_choice=some
        )
        message = answer.choices[0].message.to_dict()
        assert '{"name": "get_weather"' in str(message["content"])
        called: Any = message["tool_calls"]
        assert [call["function"]["name"] for call in called] == ["search"]
    for request in replicas.requests:
        prompt, grammar = replicas.tokens.decode(request["prompt_ids"]), request["params"].grammar
        assert '"search"' in prompt
        assert "get_weather" not in prompt
        assert (grammar is not None) == (mode == "required")
        assert grammar is None or "get_weather" not in grammar.text


@pytest.mark.parametrize(
    ("template", "shown", "ignored"),
    [
        ("{{ reasoning_effort }} {{ verbosity }}", "low high", ""),
        ("{{ enable_thinking }}", "True", "verbosity"),
        ("{{ messages[0].content }}", "Weather?", "reasoning_effort, verbosity"),
    ],
)
async def test_effort_and_verbosity_reach_a_template_that_knows_them(
    template: str, shown: str, ignored: str, tmp_path: Path
) -> None:
    async with tools_app("Yes.", with_tool_template(tmp_path, template)) as (client, replicas):
        chat = await client.chat.completions.with_raw_response.create(
            model="target", messages=ASK, reasoning_effort="low", verbosity="high"
        )
        response = await client.responses.with_raw_response.create(
            model="target",
            input="Weather?",
            reasoning={"effort": "low"},
            text={"verbosity": "high"},
        )
        prompts = [replicas.tokens.decode(one["prompt_ids"]) for one in replicas.requests]
        assert prompts == [shown] * 2
        assert chat.headers.get("x-spindle-ignored", "") == ignored
        named = ignored.replace("reasoning_", "reasoning.").replace("verb", "text.verb")
        assert response.headers.get("x-spindle-ignored", "") == named
        read = response.parse()
        assert (read.reasoning.effort, read.text.verbosity) == ("low", "high")  # type: ignore[union-attr]


@pytest.mark.parametrize("text", [TWO_CALLS, REASONED, "No call."])
async def test_a_streamed_chat_is_the_whole_one(text: str) -> None:
    async with tools_app(text, reasoning_parser="qwen3") as (client, _):
        fields: dict[str, Any] = {"model": "target", "messages": ASK, "tools": TOOLS, "n": 2}
        fields["extra_body"] = {"return_token_ids": True}
        whole = await client.chat.completions.create(**fields)
        async with client.chat.completions.stream(
            **fields, stream_options={"include_usage": True}
        ) as stream:
            done: list[tuple[str, str]] = []
            ids: dict[int, list[int]] = {0: [], 1: []}
            async for event in stream:
                if event.type == "tool_calls.function.arguments.done":
                    done.append((event.name, event.arguments))
                elif event.type == "chunk":
                    for part in event.chunk.choices:
                        ids[part.index] += (part.model_extra or {})["token_ids"]
            read = await stream.get_final_completion()
        assert read.usage == whole.usage
        expected = [] if text == "No call." else 2 * [PARIS[0], "search"]
        assert sorted(name for name, _ in done) == sorted(expected)
        for ours, streamed in zip(whole.choices, read.choices, strict=True):
            assert ours.finish_reason == ("tool_calls" if expected else "stop")
            assert ours.message.content == ("Let me see." if expected else text)
            assert streamed.finish_reason == ours.finish_reason
            assert streamed.message.content == ours.message.content
            assert ids[ours.index] == (ours.model_extra or {})["token_ids"]
            assert getattr(streamed.message, "reasoning", "") == getattr(
                ours.message, "reasoning", ""
            )
            calls = [
                [
                    (call.function.name, call.function.arguments)
                    for call in message.tool_calls or []
                    if call.type == "function"
                ]
                for message in (streamed.message, ours.message)
            ]
            assert calls[0] == calls[1]
            assert len(calls[0]) == len(expected) // 2
            assert not calls[0] or calls[0][0] == PARIS


NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
NAMED_IN_RESPONSES: Any = {"type": "function", "name": "get_weather"}
CALL_LIST = f'[{{"name": "get_weather", "parameters": {PARIS[1]}}}]'
FORCED = [("required", CALL_LIST, "tool_calls"), (NAMED, PARIS[1], "stop")]


@pytest.mark.parametrize(("choice", "text", "finish"), FORCED)
async def test_forced_calls_are_sent_with_their_schema(choice: Any, text: str, finish: str) -> None:
    """The scripted model writes what the grammar would make it write; the config has no parser."""
    async with tools_app(text, tool_parser=None) as (client, replicas):
        fields: Any = {"model": "target", "messages": ASK, "tools": TOOLS, "tool_choice": choice}
        whole = await client.chat.completions.create(**fields)
        grammar = replicas.requests[-1]["params"].grammar
        assert grammar is not None
        jsonschema.validate(json.loads(text), json.loads(grammar.text))
        async with client.chat.completions.stream(**fields) as stream:
            read = await stream.get_final_completion()
        for answer in (whole, read):
            assert answer.choices[0].finish_reason == finish
            assert answer.choices[0].message.content is None
            (call,) = answer.choices[0].message.tool_calls or []
            assert call.type == "function"
            assert (call.function.name, call.function.arguments) == PARIS
        named = NAMED_IN_RESPONSES if choice is NAMED else choice
        response = await client.responses.create(
            model="target", input="Weather?", tools=FUNCTIONS, tool_choice=named
        )
        (item,) = response.output
        assert item.type == "function_call"
        assert (item.name, item.arguments) == PARIS


@pytest.mark.parametrize("called", [False, True])
async def test_tools_beside_a_schema_of_the_answer(called: bool) -> None:
    """An answer by the schema or calls, both kept to; without any parser in the config."""
    text = CALL_LIST if called else PARIS[1]
    async with tools_app(text, tool_parser=None) as (client, replicas):
        tool = pydantic_function_tool(Weather, name="get_weather")
        chat = await client.chat.completions.parse(
            model="target", messages=ASK, tools=[tool], response_format=Weather
        )
        message = chat.choices[0].message
        sent = replicas.requests[-1]["params"].grammar
        assert sent is not None
        grammar = json.loads(sent.text)
        jsonschema.validate(json.loads(text), grammar)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"city": 1}, grammar)
        parsed = message.tool_calls[0].function.parsed_arguments if message.tool_calls else None
        assert (parsed or message.parsed) == Weather(city="Paris", days=3)
        assert bool(message.tool_calls) is called
        response = await client.responses.parse(
            model="target", input="Weather?", tools=FUNCTIONS, text_format=Weather
        )
        assert response.output[0].type == ("function_call" if called else "message")
        assert response.output_parsed == (None if called else Weather(city="Paris", days=3))


def types(events: Sequence[ResponseStreamEvent]) -> list[str]:
    """The events' types, repeated ones once."""
    return [
        event.type for at, event in enumerate(events) if not at or event.type != events[at - 1].type
    ]


async def raw_events(client: AsyncOpenAI, **fields: Any) -> list[ResponseStreamEvent]:
    """The events as they are sent, each exactly of its type in OpenAI's package."""
    adapter: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    async with client.responses.with_streaming_response.create(
        model="target", stream=True, **fields
    ) as response:
        lines = [line async for line in response.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    events = [adapter.validate_json(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [event.type for event in events] == names
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


LIFE = ["response.created", "response.in_progress"]
TEXT = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
THOUGHT = [kind.replace("output_text", "reasoning_text") for kind in TEXT]
CALL = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


@within(tools_app, REASONED, reasoning_parser="qwen3")
async def test_the_events_of_a_response(app: ToolsApp) -> None:
    client, replicas = app
    fields = {"input": "Weather?", "tools": FUNCTIONS}
    events = await raw_events(client, **fields)
    assert types(events) == [*LIFE, *THOUGHT, *TEXT, *CALL, *CALL, "response.completed"]
    replicas.text = "It is sunny."
    assert types(await raw_events(client, **fields)) == [*LIFE, *TEXT, "response.completed"]
    cut = await raw_events(client, **fields, max_output_tokens=2)
    assert types(cut) == [*LIFE, *TEXT, "response.incomplete"]
    assert cut[-1].type == "response.incomplete"
    details = cut[-1].response.incomplete_details
    assert details is not None
    assert details.reason == "max_output_tokens"


@within(tools_app, REASONED, reasoning_parser="qwen3")
async def test_a_streamed_response_is_the_whole_one(app: ToolsApp) -> None:
    client, replicas = app
    whole = await client.responses.create(
        model="target",
        input="Weather?",
        instructions="Be brief.",
        tools=FUNCTIONS,
        metadata={"a": "b"},
    )
    assert replicas.prompt.endswith("<|system|>Be brief.<|user|>Weather?<|assistant|>")
    assert whole.status == "completed"
    assert whole.store is False  # type: ignore[attr-defined]  # not in the package's type
    assert whole.metadata == {"a": "b"}
    assert whole.output_text == "Let me see."
    assert [item.type for item in whole.output] == [
        "reasoning", "message", "function_call", "function_call"
    ]  # fmt: skip
    async with client.responses.stream(
        model="target", input="Weather?", instructions="Be brief.", tools=FUNCTIONS
    ) as stream:
        snapshots = [
            event.snapshot async for event in stream if event.type == "response.output_text.delta"
        ]
        read = await stream.get_final_response()
    assert snapshots[-1] == "Let me see."
    assert len(snapshots) > 1
    assert read.usage == whole.usage
    assert read.usage is not None
    assert 0 < read.usage.output_tokens_details.reasoning_tokens < read.usage.output_tokens
    for ours, streamed in zip(whole.output, read.output, strict=True):
        left, right = ours.to_dict(), streamed.to_dict()
        for body in (left, right):
            for name in ("id", "call_id", "parsed_arguments"):
                body.pop(name, None)
            for part in body.get("content", []):  # type: ignore[attr-defined]
                part.pop("parsed", None)
        assert left == right


@within(tools_app, REASONED, reasoning_parser="qwen3")
async def test_the_items_of_a_response_are_the_next_input(app: ToolsApp) -> None:
    client, replicas = app
    first = await client.responses.create(model="target", input="Weather?", tools=FUNCTIONS)
    outputs: Any = first.output
    calls = [item for item in first.output if item.type == "function_call"]
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
        for call in calls
    ]
    items: ResponseInputParam = [
        {"role": "user", "content": "Weather?"}, *outputs, *results
    ]  # fmt: skip
    replicas.text = "It is sunny."
    second = await client.responses.create(model="target", input=items, tools=FUNCTIONS)
    assert second.output_text == "It is sunny."
    read = "".join(f"<|tool|>Sunny.@{call.call_id}" for call in calls)
    written = "".join(
        f"[{call.name} {json.dumps(json.loads(call.arguments), ensure_ascii=False)}]"
        for call in calls
    )
    turn = f"<|assistant|>Let me see.{written}(Hm.)"
    assert replicas.prompt.endswith(f"<|user|>Weather?{turn}{read}<|assistant|>")


async def test_a_response_continues_a_stored_one_of_the_same_client() -> None:
    """In a memory for some 14 items, of which those used last are kept."""
    limits = {"stored_response_bytes": 30_000}
    async with scripted(checkpoint(), "Yes.", limits) as (client, replicas):

        async def ask(text: str, before: str | None = None, **fields: Any) -> Any:
            return await client.responses.create(
                model="target", input=text, previous_response_id=before, **fields
            )

        async def refused(before: str, **fields: Any) -> None:
            with pytest.raises(openai.NotFoundError, match="was dropped; send the items") as error:
                await ask("More?", before, **fields)
            assert error.value.param == "previous_response_id"

        first = await ask("One?", instructions="Be brief.")
        assert first.to_dict()["store"] is True
        async with client.responses.stream(
            model="target", input="Two?", previous_response_id=first.id
        ) as stream:
            second = await stream.get_final_response()
        assert second.previous_response_id == first.id
        third = await ask("Three?", second.id, store=False)
        asked = "<|user|>One?<|assistant|>Yes.<|user|>Two?<|assistant|>Yes.<|user|>Three?"
        assert replicas.prompt == f"{asked}<|assistant|>", "without the first instructions"
        fork = await ask("Or?", first.id)
        assert replicas.prompt == "<|user|>One?<|assistant|>Yes.<|user|>Or?<|assistant|>"
        await refused(third.id)
        await refused(first.id, extra_body={"cache_salt": "another"})
        for _ in range(3):
            await ask("Something else?")
        await refused(second.id)
        assert (await ask("And?", fork.id)).output_text == "Yes."


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not stored here; send"),
        ({"conversation": "conv_1"}, "conversation", "use previous_response_id"),
        (
            {"extra_body": {"spindle": {"trace": True}, "stream": True}},
            "spindle",
            "trace is for /v1/chat/completions",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", r"input\.0: type: only"),
        ({"input": "word " * 600}, "input", "input"),
        ({"max_output_tokens": 5000}, "max_output_tokens", "5000"),
        ({"tools": FUNCTIONS[:1] * 2}, "tools", "two functions"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text", "format.schema"),
    ],
)
@within(tools_app, "")
async def test_what_a_response_cannot_have_is_refused_by_name(
    app: ToolsApp, fields: dict[str, Any], param: str, message: str
) -> None:
    client, replicas = app
    with pytest.raises(openai.APIStatusError, match=message) as refused:
        await client.responses.create(**{"model": "target", "input": "x", **fields})
    assert refused.value.status_code in (400, 413)
    assert refused.value.param == param
    assert not replicas.requests
