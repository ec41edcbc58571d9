"""What clients that we did not write send, replayed over HTTP: their packages contradict our pins.

The bodies in recorded_clients.json are those of LiteLLM 1.110.2, instructor 1.17.0,
langchain-openai 1.7.4 and pydantic-ai 2.38.0 (openai 3.3.0 below them), openai-agents 0.24.0,
haystack-ai 3.4.1, smolagents 1.26.0 and aisuite 0.2.0 (openai 3.57.0), llama-index-llms-openai-like
0.8.1 (openai 2.54.0), and Vercel's `ai` 6.0.326, each of which completed its scenario against the
same server. instructor wants rich below 15 and jiter below 0.15, LiteLLM a later certifi than the
one of the serving layer.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deployments.ingress.parsing.test_formats import CALLS, PARIS
from tests.deployments.ingress.scripted import scripted, with_tool_template

pytestmark = pytest.mark.usefixtures("loop")
RECORDED: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("recorded_clients.json").read_text()
)
SUNNY = "It is sunny."
WITHOUT_EFFECT = {"tools.strict", "tools.function.strict"}
"""Calls that a model may make are not enforced, so `strict` changes nothing there."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tool_template(tmp_path_factory.mktemp("recorded"))


@pytest.mark.parametrize("recorded", RECORDED, ids=[one["name"] for one in RECORDED])
async def test_recorded_request(checkpoint: Path, recorded: dict[str, Any]) -> None:
    body = recorded["body"]
    says, expected = spoken(body)
    async with (
        scripted(checkpoint, says, tool_parser="hermes") as (client, _),
        httpx.AsyncClient(headers={"Authorization": "Bearer x"}) as http,
    ):
        server = str(client.base_url).removesuffix("/v1/")
        response = await http.post(server + recorded["path"], json=body)
    assert response.status_code == 200, response.text
    ignored = response.headers.get("x-spindle-ignored", "")
    assert set(filter(None, ignored.split(", "))) <= WITHOUT_EFFECT
    assert answered(recorded["path"], body, response) == expected


def spoken(body: dict[str, Any]) -> tuple[str, tuple[str, str]]:
    """The model's own words, and the answer that the client reads: name and arguments of a call,
    or nothing and a text."""
    if isinstance(choice := body.get("tool_choice"), dict):
        return PARIS[1], (choice["function"]["name"], PARIS[1])
    if "response_format" in body or "text" in body:
        return PARIS[1], ("", PARIS[1])
    if choice == "required":
        calls = [{"name": PARIS[0], "parameters": json.loads(PARIS[1])}]
        return json.dumps(calls), PARIS
    has_result = "Sunny in Paris" in json.dumps(body)
    return (SUNNY, ("", SUNNY)) if has_result or not body.get("tools") else (CALLS[0][1], PARIS)


def answered(path: str, body: dict[str, Any], response: httpx.Response) -> tuple[str, str]:
    if path == "/v1/responses":
        if body.get("stream"):
            (whole,) = [one["response"] for one in events(response) if "completed" in one["type"]]
        else:
            whole = response.json()
        (item,) = whole["output"]
        if item["type"] == "function_call":
            return item["name"], item["arguments"]
        return "", item["content"][0]["text"]
    if not body.get("stream"):
        message = response.json()["choices"][0]["message"]
        for call in message.get("tool_calls") or []:
            return call["function"]["name"], call["function"]["arguments"]
        return "", message["content"]
    name = arguments = ""
    for chunk in events(response):
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls") or []:
                name += call["function"].get("name") or ""
                arguments += call["function"].get("arguments") or ""
    return name, arguments


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))
