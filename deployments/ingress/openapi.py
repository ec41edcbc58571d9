"""The OpenAPI document: FastAPI's, with the types of answers and errors and the scheme of keys."""

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from deployments.ingress import answer_types as answers

_REF = "#/components/schemas/{model}"
_STREAMED = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
_OF_VALIDATION = ("HTTPValidationError", "ValidationError")
"""FastAPI's own error, in whose place there is 400 in OpenAI's shape."""
_KEY = "api_key"

ANSWERS: Mapping[tuple[str, str], type[BaseModel]] = {
    ("post", "/v1/completions"): answers.CompletionAnswer,
    ("post", "/v1/chat/completions"): answers.ChatAnswer,
    ("post", "/v1/responses"): answers.ResponseAnswer,
    ("post", "/tokenize"): answers.TokenizeAnswer,
    ("post", "/detokenize"): answers.DetokenizeAnswer,
    ("get", "/v1/models"): answers.ModelsAnswer,
    ("get", "/v1/models/{name}"): answers.ModelAnswer,
    ("get", "/load"): answers.LoadAnswer,
    ("get", "/health"): answers.HealthAnswer,
    ("get", "/ping"): answers.HealthAnswer,
    ("post", "/ping"): answers.HealthAnswer,
    ("get", "/version"): answers.VersionAnswer,
}
LINKS: Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]] = {
    ("get", "/v1/models"): {
        "model": {
            "description": "The first model of the list.",
            "operationRef": "#/paths/~1v1~1models~1{name}/get",
            "parameters": {"name": "$response.body#/data/0/id"},
        }
    },
    ("post", "/tokenize"): {
        "text": {
            "description": "The text of these tokens.",
            "operationRef": "#/paths/~1detokenize/post",
            "requestBody": {"tokens": "$response.body#/tokens"},
        }
    },
    ("post", "/v1/completions"): {
        "again": {
            "description": "The same choice, by its seed.",
            "operationRef": "#/paths/~1v1~1completions/post",
            "requestBody": {
                "model": "$request.body#/model",
                "prompt": "$request.body#/prompt",
                "seed": "$response.body#/choices/0/spindle/seed",
            },
        }
    },
}
"""OpenAPI's links: how the next request follows from an answer, for tools that test sequences."""


def add_schema(http: FastAPI, with_keys: bool, open_paths: Collection[str]) -> None:
    """`open_paths`: those that need no key."""

    def schema() -> dict[str, Any]:
        if http.openapi_schema is None:
            made = get_openapi(title=http.title, version=http.version, routes=http.routes)
            http.openapi_schema = completed(made, with_keys, open_paths)
        return http.openapi_schema

    http.openapi = schema  # type: ignore[method-assign]  # as FastAPI documents it


def completed(
    document: dict[str, Any], with_keys: bool, open_paths: Collection[str]
) -> dict[str, Any]:
    kinds: list[type[BaseModel]] = [*dict.fromkeys(ANSWERS.values()), answers.ErrorAnswer]
    _, made = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_REF)
    components = document["components"]
    kept = {name: one for name, one in components["schemas"].items() if name not in _OF_VALIDATION}
    components["schemas"] = kept | made["$defs"]
    if with_keys:
        description = "One of the config's `api_keys`."
        scheme = {"type": "http", "scheme": "bearer", "description": description}
        components["securitySchemes"] = {_KEY: scheme}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            responses = operation["responses"]
            responses.pop("422", None)
            if (kind := ANSWERS.get((method, path))) is not None:
                responses["200"]["content"] = _content(kind, path in _STREAMED)
            if (links := LINKS.get((method, path))) is not None:
                responses["200"]["links"] = links
            problem = {"description": "An error", "content": _content(answers.ErrorAnswer)}
            responses["default"] = problem
            if with_keys and path not in open_paths:
                operation["security"] = [{_KEY: []}]
    return document


def _content(kind: type[BaseModel], streamed: bool = False) -> dict[str, Any]:
    whole = {"application/json": {"schema": {"$ref": _REF.format(model=kind.__name__)}}}
    events = {"text/event-stream": {"schema": {"type": "string"}}}
    return whole | events if streamed else whole
