"""Clients that we did not write with tools; each runs where its package is installed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.deployments.ingress.parsing.test_formats import CALLS, PARIS
from tests.deployments.ingress.scripted import ScriptedReplicas, scripted, with_tool_template

ASK = [{"role": "user", "content": "Weather?"}]
CALL = CALLS[0][1]
Test = Callable[[str, AsyncOpenAI, ScriptedReplicas], Awaitable[None]]


class Weather(BaseModel):
    """The weather of the next days."""

    city: str
    days: int


PARSED = Weather(city="Paris", days=3)


def get_weather(city: str, days: int) -> str:
    """The weather of the next days."""
    return f"Sunny in {city} for {days} days."


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tool_template(tmp_path_factory.mktemp("clients"))


def run(checkpoint: Path, text: str, test: Test) -> None:
    async def inside() -> None:
        async with scripted(checkpoint, text, tool_parser="hermes") as (client, replicas):
            await test(str(client.base_url), client, replicas)

    asyncio.run(inside())


def answer_behind_the_call(replicas: ScriptedReplicas, text: str) -> None:
    """The model answers with `text` once a prompt has the tool's result."""
    replicas.replies = lambda prompt: text if "<|tool|>" in prompt else CALL


def test_litellm(checkpoint: Path) -> None:
    litellm = pytest.importorskip("litellm")

    async def test(url: str, client: AsyncOpenAI, replicas: ScriptedReplicas) -> None:
        function = {"name": "get_weather", "parameters": Weather.model_json_schema()}
        fields: dict[str, Any] = {
            "model": "openai/target",
            "api_base": url,
            "api_key": "x",
            "messages": ASK,
            "tools": [{"type": "function", "function": function}],
        }
        whole = await litellm.acompletion(**fields)
        called = whole.choices[0].message.tool_calls[0].function
        assert (called.name, called.arguments) == PARIS
        assert whole.choices[0].finish_reason == "tool_calls"
        stream = await litellm.acompletion(**fields, stream=True)
        built = litellm.stream_chunk_builder([chunk async for chunk in stream])
        called = built.choices[0].message.tool_calls[0].function
        assert (called.name, called.arguments) == PARIS

    run(checkpoint, CALL, test)


def test_langchain(checkpoint: Path) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")

    async def test(url: str, client: AsyncOpenAI, replicas: ScriptedReplicas) -> None:
        for responses in (False, True):
            chat = langchain_openai.ChatOpenAI(
                model="target", base_url=url, api_key="x", use_responses_api=responses
            )
            with_tools = chat.bind_tools([get_weather])
            message = await with_tools.ainvoke("Weather?")
            assert [call["args"] for call in message.tool_calls] == [PARSED.model_dump()]
            parts = [part async for part in with_tools.astream("Weather?")]
            streamed = parts[0]
            for part in parts[1:]:
                streamed += part
            assert [call["args"] for call in streamed.tool_calls] == [PARSED.model_dump()]

    run(checkpoint, CALL, test)


def test_pydantic_ai(checkpoint: Path) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")

    async def test(url: str, client: AsyncOpenAI, replicas: ScriptedReplicas) -> None:
        answer_behind_the_call(replicas, "It is sunny.")
        for model in (models.OpenAIChatModel, models.OpenAIResponsesModel):
            provider = providers.OpenAIProvider(openai_client=client)
            agent = pydantic_ai.Agent(model("target", provider=provider), tools=[get_weather])
            ran = await agent.run("Weather?")
            assert ran.output == "It is sunny."
            assert "Sunny in Paris for 3 days." in replicas.prompt

    run(checkpoint, CALL, test)


def test_instructor(checkpoint: Path) -> None:
    instructor = pytest.importorskip("instructor")

    async def test(url: str, client: AsyncOpenAI, replicas: ScriptedReplicas) -> None:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            asking = instructor.from_openai(client, mode=mode)
            answer = await asking.chat.completions.create(
                model="target", messages=ASK, response_model=Weather
            )
            assert answer.model_dump() == PARSED.model_dump()

    run(checkpoint, PARIS[1], test)


def test_structured_output_of_langchain(checkpoint: Path) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")

    async def test(url: str, client: AsyncOpenAI, replicas: ScriptedReplicas) -> None:
        chat = langchain_openai.ChatOpenAI(model="target", base_url=url, api_key="x")
        for method in ("json_schema", "function_calling"):
            structured = chat.with_structured_output(Weather, method=method)
            assert await structured.ainvoke("Weather?") == PARSED

    run(checkpoint, PARIS[1], test)
