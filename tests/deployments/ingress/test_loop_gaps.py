"""No request keeps the ingress's event loop for longer than a tenth of a second: after five of
silence the replicas would cancel everybody's streams."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from deployments.ingress.api import Api
from deployments.ingress.http import make_http
from deployments.ingress.tokenizer import Tokens
from tests.deployments.ingress.loop_gaps import MOST_GAP_S, loop_gap, post
from tests.deployments.ingress.scripted import ScriptedReplicas, with_tool_template
from tests.deployments.local import make_config

TRIES = 3
COMPLETIONS, CHATS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
KINDS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": "target", "prompt": "Hi", "max_tokens": 4},
    CHATS: {"model": "target", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    RESPONSES: {"model": "target", "input": "Hi", "max_output_tokens": 4},
}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


def wide(properties: int, text: str) -> dict[str, Any]:
    described = {"type": "string", "description": text}
    return {
        "type": "object",
        "properties": {f"p{number}": described for number in range(properties)},
    }


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


HOSTILE: dict[str, tuple[str, dict[str, Any], int]] = {
    "two stop strings that begin alike": (
        COMPLETIONS,
        {"stop": ["a" * 655_000 + "b", "a" * 655_000 + "c"]},
        400,
    ),
    "as long stop strings as there may be": (
        COMPLETIONS,
        {"stop": ["a" * 1023 + end for end in "bcde"], "n": 16},
        200,
    ),
    "a large schema beside tools": (
        CHATS,
        {"tools": [TOOL], "response_format": form(wide(16_000, "x" * 140))},
        400,
    ),
    "a schema of one large text beside tools": (
        CHATS,
        {"tools": [TOOL], "response_format": form(wide(1, "x" * 4_000_000))},
        400,
    ),
    "large schemas of tools that must be called": (
        CHATS,
        {
            "tools": [{**TOOL, "function": {"name": "f", "parameters": wide(16_000, "x" * 140)}}],
            "tool_choice": "required",
        },
        400,
    ),
    "empty lists": (COMPLETIONS, {"unknown": [[]] * 1_300_000}, 400),
    "as many lists as there may be": (RESPONSES, {"unknown": [[]] * 65_000}, 200),
    "arguments of empty lists": (
        CHATS,
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "a",
                            "function": {"name": "f", "arguments": json.dumps([[]] * 900_000)},
                        }
                    ],
                }
            ]
        },
        400,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_leaves_the_loop_to_others(name: str, tmp_path: Path) -> None:
    path, changes, status = HOSTILE[name]
    body = json.dumps({**KINDS[path], **changes}, separators=(",", ":")).encode()

    async def test(app: ASGIApp) -> None:
        gap, answered = await measured(app, path, body)
        assert answered == status
        assert gap < MOST_GAP_S

    run(test, tmp_path)


async def measured(app: ASGIApp, path: str, body: bytes) -> tuple[float, int]:
    """The longest gap and the status. A long gap is measured again: of those that a busy machine
    has made, not all are long."""
    gaps: list[float] = []
    while len(gaps) < TRIES and min(gaps, default=MOST_GAP_S) >= MOST_GAP_S:
        async with loop_gap() as gap:
            status, _ = await post(app, path, body)
        gaps.append(gap.longest_s)
    return min(gaps), status


def run(test: Callable[[ASGIApp], Coroutine[None, None, None]], path: Path) -> None:
    async def inside() -> None:
        async with scripted_app(path) as app:
            for kind, fields in KINDS.items():  # what is imported and made at first use
                await post(app, kind, json.dumps(fields).encode())
            # As in the Ingress: the garbage collector passes over all that is there already.
            gc.collect()
            gc.freeze()
            await test(app)

    try:
        asyncio.run(inside())
    finally:
        gc.unfreeze()


@asynccontextmanager
async def scripted_app(path: Path) -> AsyncIterator[ASGIApp]:
    """With replicas that answer everything, so that a request passes the whole ingress."""
    with_tool_template(path)
    target = {"model": str(path), "dtype": "float32", "placement": "inline"}
    config = make_config(
        target={**target, "tool_parser": "hermes"}, served_name="target", drafters=[]
    )
    api = Api(config, ScriptedReplicas(Tokens(path), "Hello aaaa"))
    try:
        yield make_http(api)
    finally:
        api.close()
