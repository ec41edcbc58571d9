"""The OpenAPI document says what answers look like, and how to send a key."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from deployments.ingress import answer_types as answers
from deployments.ingress.http import make_http
from tests.deployments.ingress.test_ingress import CHAT, PROMPT, App, run
from tests.deployments.local import local_api, make_config

LISTED = {"max_tokens": 4, "n": 2, "return_token_ids": True, "prompt_logprobs": 2}
ANSWERED: list[tuple[str, dict[str, Any] | None, type[BaseModel]]] = [
    ("/v1/completions", {**PROMPT, "max_tokens": 4}, answers.CompletionAnswer),
    ("/v1/completions", {**PROMPT, **LISTED, "logprobs": 2, "echo": True},
     answers.CompletionAnswer),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 4}, answers.ChatAnswer),
    ("/v1/chat/completions", {**CHAT, **LISTED, "logprobs": True, "top_logprobs": 2},
     answers.ChatAnswer),
    ("/v1/responses", {"model": "target", "input": "Hello", "max_output_tokens": 4},
     answers.ResponseAnswer),
    ("/v1/completions", {**PROMPT, "max_tokens": -1}, answers.ErrorAnswer),
    ("/tokenize", {"prompt": "a", "return_token_strs": True}, answers.TokenizeAnswer),
    ("/detokenize", {"tokens": [5]}, answers.DetokenizeAnswer),
    ("/v1/models", None, answers.ModelsAnswer),
    ("/v1/models/target", None, answers.ModelAnswer),
    ("/load", None, answers.LoadAnswer),
    ("/health", None, answers.HealthAnswer),
    ("/version", None, answers.VersionAnswer),
]  # fmt: skip


def test_answers_have_the_fields_of_their_types_and_no_others() -> None:
    async def test(app: App) -> None:
        for path, body, kind in ANSWERED:
            sent = app.client.get(path) if body is None else app.client.post(path, json=body)
            fields = (await sent).json()
            assert kind.model_validate(fields).model_dump(exclude_unset=True) == fields, path

    run(test)


def document(**sections: Any) -> dict[str, Any]:
    async def inside() -> dict[str, Any]:
        async with local_api(make_config(**sections)) as (api, _):
            return make_http(api).openapi()

    return asyncio.run(inside())


def test_every_operation_says_what_it_answers_and_how_errors_look() -> None:
    schema = document()
    assert {"HTTPValidationError", "ValidationError"}.isdisjoint(schema["components"]["schemas"])
    for methods in schema["paths"].values():
        for operation in methods.values():
            assert "422" not in operation["responses"]
            error = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert error["$ref"].endswith("/ErrorAnswer")
    chat = schema["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert chat["application/json"]["schema"]["$ref"].endswith("/ChatAnswer")
    assert "text/event-stream" in chat


@pytest.mark.parametrize("with_keys", [False, True])
def test_keys_are_a_scheme_where_they_are_asked_for(with_keys: bool) -> None:
    schema = document(api_keys={"tenant": "a key"} if with_keys else {})
    schemes = schema["components"].get("securitySchemes", {})
    assert [one["scheme"] for one in schemes.values()] == (["bearer"] if with_keys else [])
    paths = {"/v1/chat/completions": "post", "/health": "get"}
    secured = {path: "security" in schema["paths"][path][method] for path, method in paths.items()}
    assert secured == {"/v1/chat/completions": with_keys, "/health": False}


def test_links_lead_to_operations_of_the_document() -> None:
    schema = document()
    links = [
        link
        for methods in schema["paths"].values()
        for operation in methods.values()
        for link in operation["responses"]["200"].get("links", {}).values()
    ]
    assert len(links) >= 3
    for link in links:
        found: Any = schema
        for part in link["operationRef"].removeprefix("#/").split("/"):
            found = found[part.replace("~1", "/")]
        assert found["responses"]
