"""Any input at the boundary: what has no effect is named, what cannot be served is refused in plain
words, and the rest is within the ranges of the engine."""

import asyncio
import json
import pickle
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from deployments.ingress.errors import ApiError
from deployments.ingress.http import make_http
from deployments.ingress.reading import HEADER, STRICT_HEADER, ignored_fields
from deployments.ingress.requests.completions import ChatRequest, CompletionRequest
from deployments.ingress.requests.unsupported import SHARED
from engine.errors import InvalidRequest
from engine.sampling.params import validate_params
from policies.ranges import PRIORITY
from tests.deployments.ingress.requests.test_completions import (
    CHAT,
    COMPLETION,
    LIMITS,
    TOKENS,
    Kind,
    choices,
    refusal,
)
from tests.deployments.local import local_api

MARK = "§"
"""Stands for a client's text: how much of it a message repeats can be counted."""
HOSTILE = st.sampled_from(
    [
        *(-1, 0, 1, 2, 5, 2**31, 2**53, 2**63, 2**64, -(2**31), -(2**63), 10**30),
        *(0.5, -0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf")),
        *(True, False, "", MARK * 5000, "off", "near", "\ud800", [], {}, [MARK * 5000], [[]]),
        *([5, 6], [-1], [2**63], [[5], [6]], ["a"] * 5000, {MARK * 5000: 1}, {"5": 1}),
        *({"type": "text"}, {"type": MARK * 5000}, {"name": MARK}, [{"role": "user"}]),
        *([{"role": "user", "content": MARK * 5000}], [{"role": MARK * 5000, "content": "x"}]),
    ]
)
KINDS: dict[Kind, dict[str, Any]] = {CompletionRequest: COMPLETION, ChatRequest: CHAT}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[Kind, dict[str, Any], dict[str, Any]]:
    kind = draw(st.sampled_from(list(KINDS)))
    names = st.sampled_from([*kind.model_fields, *SHARED, "unknown", MARK * 5000])
    changes = draw(st.dictionaries(names, HOSTILE, min_size=1, max_size=3))
    return kind, {**KINDS[kind], **changes}, changes


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(body=bodies())
def test_any_field_is_served_within_the_engines_ranges_or_refused_by_name(
    body: tuple[Kind, dict[str, Any], dict[str, Any]],
) -> None:
    kind, fields, changes = body
    try:
        request = kind.model_validate(fields)
        sent = choices(request)
    except (ApiError, InvalidRequest, ValidationError) as error:
        refused = ApiError.of(error)
        assert refused.status == 400
        assert refused.param is not None
        # A field may be refused for what another one says.
        related = {"prompt", "messages", "max_tokens", "min_tokens", "stop_token_ids"}
        assert refused.param in changes.keys() | related | {"stream_options", "top_logprobs"}
        assert refused.message.startswith(refused.param)
        assert refused.message.count(MARK) <= 100
        assert "Error" not in refused.message
        json.dumps(refused.body()).encode()
        return
    for one in sent:
        pickle.dumps(one)
        validate_params(one["params"], LIMITS.vocab_size)
        assert all(0 <= token < LIMITS.vocab_size for token in one["prompt_ids"])
        assert len(one["prompt_ids"]) + one["params"].max_tokens <= LIMITS.max_context
        assert PRIORITY.holds(one["priority"])
    assert set(ignored_fields(request, TOKENS)) <= changes.keys() | {
        f"{field}.{name}" for field in changes for name in ("type", "name", "5", MARK * 5000)
    }


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (CompletionRequest, {"temperature": -1}, "temperature: must be greater than or equal to 0"),
        (CompletionRequest, {"temperature": "1"}, "temperature: must be a valid number"),
        (CompletionRequest, {"n": 1.5}, "n: must be a valid integer"),
        (CompletionRequest, {"n": 9}, "n: at most 3 here, got 9"),
        (CompletionRequest, {"stop": ["a"] * 5}, "stop: must have at most 4 items"),
        (CompletionRequest, {"stop": 5}, "stop: must be a valid string or must be a valid list"),
        (CompletionRequest, {"stop": ["a", ""]}, "stop.1: must have at least 1 character"),
        (CompletionRequest, {"prompt": [5, -1]}, "prompt.1: must be greater than or equal to 0"),
        (CompletionRequest, {"slo": {"ttft": 1}}, "slo.ttft: there is no such field; leave it out"),
        (CompletionRequest, {"model": None}, "model: is required"),
        (CompletionRequest, {"best_of": 2}, "best_of: only 1 is supported; use n"),
        (CompletionRequest, {"speculation": MARK * 200}, f"speculation: '{MARK * 97}...'"),
        (
            CompletionRequest,
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern: is not supported; use grammar",
        ),
        (ChatRequest, {"messages": []}, "messages: must have at least 1 item"),
        (ChatRequest, {"top_logprobs": 2}, "top_logprobs: needs logprobs to be true"),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content: images are not supported by this model; send text",
        ),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": "x", "refusal": "x"}]},
            "messages.0.refusal: a refusal is no part of a prompt",
        ),
    ],
)
def test_a_message_names_field_limit_and_way_out(
    kind: Kind, fields: dict[str, Any], message: str
) -> None:
    assert refusal(kind, {**KINDS[kind], **fields}).message.startswith(message)


def test_of_a_long_name_an_error_has_the_beginning() -> None:
    nested: list[Any] = []
    for _ in range(200):
        nested = [nested]
    refused = refusal(CompletionRequest, {**COMPLETION, MARK * 5000: nested})
    assert json.dumps(refused.body(), ensure_ascii=False).count(MARK) == 200


def test_fields_without_effect_are_named_with_their_path() -> None:
    request = ChatRequest.model_validate(
        {
            **CHAT,
            "messages": [{"role": "user", "content": "x", "color": 1}] * 3,
            "stream": True,
            "stream_options": {"include_obfuscation": True, "other": 1},
            "store": True,
            "service_tier": "flex",
            "frobnicate": None,
            "user": "me",
            "chat_template_kwargs": {"unused": 1},
            "tools": [{"type": "function", "function": {"name": "f", "shown_to_the_model": 1}}],
        }
    )
    assert set(ignored_fields(request, TOKENS)) == {
        "tools",  # The template does not show them.
        *("messages.color", "stream_options.other", "stream_options.include_obfuscation"),
        *("store", "service_tier", "frobnicate", "chat_template_kwargs.unused"),
    }


def ask(path: str, fields: dict[str, Any], strict: str = "0") -> httpx.Response:
    async def inside() -> httpx.Response:
        async with local_api() as (api, _):
            http = httpx.ASGITransport(make_http(api))
            async with httpx.AsyncClient(transport=http, base_url="http://localhost") as client:
                headers = {STRICT_HEADER: strict, "Content-Type": "application/json"}
                return await client.post(path, content=json.dumps(fields), headers=headers)

    return asyncio.run(inside())


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_names_fields_without_effect_in_a_header(stream: bool) -> None:
    fields = {**COMPLETION, "max_tokens": 2, "stream": stream, "line\r\nbreak": 1, "é": 1}
    many = {f"unknown_{number}": 1 for number in range(100)}
    answer = ask("/v1/completions", {**fields, **many})
    assert answer.status_code == 200
    names = answer.headers[HEADER].split(", ")
    assert names[:3] == ["line??break", "?", "unknown_0"]
    assert names[-1] == "and 86 more"
    assert HEADER not in ask("/v1/completions", {**COMPLETION, "max_tokens": 2}).headers


def test_strict_requests_refuse_them() -> None:
    fields = {"model": "target", "prompt": "x", "frobnicate": 1}
    answer = ask("/v1/completions", fields, strict="1")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "frobnicate"
    assert error["message"].startswith("frobnicate: has no effect here; leave it out")
