"""Single requests that are made to fail the server, to hold it up, or to pass its gate."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from deployments.ingress.requests.chat_messages import CalledFunction
from deployments.ingress.requests.completions import ChatRequest, CompletionRequest
from deployments.ingress.requests.json_bounds import MAX_NESTING, parsed
from deployments.ingress.responses_api.request import ResponsesRequest
from tests.deployments.ingress.test_ingress import CHAT, PROMPT, App, http_app
from tests.deployments.local import within

pytestmark = pytest.mark.usefixtures("loop")
JSON = {"Content-Type": "application/json"}
RESPONSE: dict[str, Any] = {"model": "target", "input": "Hello"}
INPUT_TEXT = {"type": "input_text", "text": "Hello"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
FUNCTION: dict[str, Any] = {"type": "function", "name": "f"}
COMPLETIONS, CHATS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"


async def raw(app: App, sent: bytes) -> bytes:
    """What the server answers to these bytes."""
    url = app.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(sent)
    async with asyncio.timeout(30):
        answer = await reader.read(-1)
    writer.close()
    return answer


HEADS = [
    (b"GET /metrics HTTP/1.1", b"x/health?", 401),
    (b"GET /v1/models HTTP/1.1", b"x/health?", 401),
    (b"GET /v1/models HTTP/1.1", b"x/health#", 401),
    (b"GET /v1/models HTTP/1.1", b"[", 401),
    (b"GET /health HTTP/1.1", b"[", 200),
    (b"GET //health HTTP/1.1", b"x", 401),
    (b"GET /health/../v1/models HTTP/1.1", b"x", 401),
    (b"GET /version?\xff HTTP/1.1", b"x", 400),
    (b"GET /health/?\xff HTTP/1.1", b"x", 400),
]
"""First line, host and status."""


@within(http_app, api_keys={"tenant": "key"})
async def test_no_head_passes_the_gate_or_fails_it(app: App) -> None:
    for line, host, status in HEADS:
        answer = await raw(app, line + b"\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert answer.split()[1] == b"%d" % status, (line, host, answer)


def nested(levels: int, kind: type[list[Any]] | type[dict[str, Any]] = list) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


PLACES: list[tuple[str, dict[str, Any], str]] = [
    (RESPONSES, RESPONSE, "metadata"),
    (RESPONSES, {**RESPONSE, "text": {"format": {"type": "text"}}}, "text.format.unknown"),
    (RESPONSES, {**RESPONSE, "tools": [FUNCTION]}, "tools.0.parameters"),
    (
        RESPONSES,
        {**RESPONSE, "input": [{"role": "user", "content": [{**INPUT_TEXT, "annotations": [{}]}]}]},
        "input.0.content.0.annotations.0.x",
    ),
    (CHATS, CHAT, "unknown"),
    (CHATS, CHAT, "chat_template_kwargs"),
    (CHATS, CHAT, "messages.0.unknown"),
    (CHATS, {**CHAT, "tools": [TOOL], "tool_choice": "none"}, "tools.0.function.parameters"),
    (
        CHATS,
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema",
    ),
    (COMPLETIONS, {**PROMPT, "structured_outputs": {}}, "structured_outputs.json"),
    (CHATS, {**CHAT, "tools": [TOOL], "tool_choice": "none"}, "tools.0.x"),
]
"""Where a client may write any JSON: path, body and field."""


@within(http_app)
async def test_deep_json_is_refused_by_name_wherever_a_client_may_write_any(app: App) -> None:
    """Some of it fitted through the JSON parser, but not through what came later."""
    for levels, (path, body, place) in product((MAX_NESTING + 2, 300, 900), PLACES):
        sent = json.loads(json.dumps(body))
        *outer, last = place.split(".")
        inner = sent
        for part in outer:
            inner = inner[int(part)] if part.isdigit() else inner[part]
        inner[last] = nested(levels, dict)
        answer = await app.client.post(path, content=json.dumps(sent), headers=JSON)
        assert answer.status_code == 400, (levels, place, answer.text)
        message = answer.json()["error"]["message"]
        assert "nested" in message or "cannot be read" in message
        if levels < 480:
            assert message.startswith(place.partition(".")[0])


def test_arguments_of_calls_that_are_no_unicode_text_stay_as_the_model_wrote_them() -> None:
    text = '{"text": "\\ud83d"}'
    assert CalledFunction(name="f", arguments=text).for_template["arguments"] == text


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 400, 900, 960, 980, 100_000])
def test_deep_arguments_of_calls_stay_a_text(levels: int) -> None:
    text = "[" * levels + "]" * levels
    assert CalledFunction(name="f", arguments=text).for_template["arguments"] == text


@pytest.mark.parametrize(
    ("kind", "body", "field", "value"),
    [
        (CompletionRequest, PROMPT, "logit_bias", {str(n): "x" for n in range(100_000)}),
        (CompletionRequest, PROMPT, "prompt", [None] * 100_000),
        (ChatRequest, CHAT, "messages", [1] * 100_000),
        (ChatRequest, CHAT, "messages", [{"role": "user", "content": [1] * 100_000}]),
        (ChatRequest, CHAT, "tools", [1] * 100_000),
        (ResponsesRequest, RESPONSE, "input", [1] * 100_000),
        (ResponsesRequest, RESPONSE, "input", [{"role": "user", "content": [1] * 100_000}]),
        (ResponsesRequest, RESPONSE, "tools", [1] * 100_000),
    ],
)
def test_a_long_list_of_mistakes_is_a_short_list_of_errors(
    kind: Any, body: dict[str, Any], field: str, value: Any
) -> None:
    """Making an error of each held the event loop up for seconds."""
    with pytest.raises(ValidationError) as raised:
        kind.model_validate({**body, field: value})
    assert raised.value.error_count() <= 2048


@pytest.mark.parametrize("text", ["[{:," * 200_000, '\\",[' * 200_000, "\\" * 800_000, "9" * 5000])
def test_what_a_text_holds_is_not_counted(text: str) -> None:
    assert parsed(json.dumps({"a": text, "b": 1.5}).encode()) == {"a": text, "b": 1.5}


async def test_bodies_that_arrive_slowly_take_no_more_memory_than_a_few() -> None:
    """Those of one client; another one's are read meanwhile."""

    async def sent(size: int, seconds: float) -> AsyncIterator[bytes]:
        yield b" " * size
        await asyncio.sleep(seconds)
        yield json.dumps({**PROMPT, "max_tokens": 1}).encode()

    async def asked(app: App, tenant: str, size: int, seconds: float) -> httpx.Response:
        headers = {**JSON, "Authorization": f"Bearer key of {tenant}"}
        return await app.client.post(COMPLETIONS, content=sent(size, seconds), headers=headers)

    keys = {"first": "key of first", "second": "key of second"}
    async with http_app(api_keys=keys, limits={"max_body_bytes": 4096}) as app:
        slow = [asyncio.create_task(asked(app, "first", 3900, 1.0)) for _ in range(16)]
        await asyncio.sleep(0.5)
        one_more = await asked(app, "first", 3600, 0.0)
        assert one_more.status_code == 429
        assert one_more.headers["Retry-After"]
        assert (await asked(app, "second", 500, 0.0)).status_code == 200
        assert {(await one).status_code for one in slow} == {200}
        assert (await asked(app, "first", 500, 0.0)).status_code == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
@within(http_app)
async def test_a_body_that_is_not_called_json_is_told_how_to_be(app: App, kind: str | None) -> None:
    """`curl -d` without a header."""
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await app.client.post(COMPLETIONS, content=json.dumps(PROMPT), headers=headers)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message == ("body: send it as JSON, with the header `content-type: application/json`")


UNPARSED = [
    (b"\xff", "cannot be read as JSON; send"),
    # Half of ∀ is a quote there, after which nothing was counted.
    (('{"∀":[' + "[]," * 2**17 + "0]}").encode("utf-16"), "cannot be read as JSON; send"),
    (b"[" * 8000, "cannot be read as JSON; send"),
    (b'{"a": ' + b"9" * 5000 + b"}", "has a number of more than 1000 digits; shorten it"),
    (b'{"a":[' + b"0," * (2**18 + 1) + b"0]}", "has more than 262144 values; send less at once"),
    (b'{"a":[' + b"[]," * 2**16 + b"0]}", "has more than 65536 lists, objects and members"),
    (b"[" + b'"",' * 2**18 + b'"",0]', "has more than 262144 texts; send less at once"),
]
"""Bodies, and what is said of them."""


@within(http_app)
async def test_a_body_that_is_not_parsed_is_told_why(app: App) -> None:
    for body, message in UNPARSED:
        answer = await app.client.post(COMPLETIONS, content=body, headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"body: {message}")
