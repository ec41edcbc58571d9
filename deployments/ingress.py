"""The HTTP face: one model behind OpenAI's completions API."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from actors.jobs import Overloaded
from cluster.config import AppConfig
from deployments.openai import CompletionRequest, completion, new_identity, refusal
from deployments.service import Service
from engine.errors import InvalidRequest
from engine.protocol import Commit

http = FastAPI(title="Spindle")


@http.exception_handler(RequestValidationError)
async def refuse_fields(_request: Request, error: RequestValidationError) -> JSONResponse:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    return refusal(400, f"{field}: {first['msg']}", field or None)


@http.exception_handler(InvalidRequest)
async def refuse_values(_request: Request, error: InvalidRequest) -> JSONResponse:
    return refusal(400, str(error), error.field)


@http.exception_handler(Overloaded)
async def refuse_load(_request: Request, error: Overloaded) -> JSONResponse:
    return refusal(429, str(error), None)


@serve.ingress(http)
class Ingress:
    def __init__(self, config: AppConfig) -> None:
        self._name = Path(config.target.model).name
        path = config.target.path()
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._service = Service(config)
        self._warm_up = asyncio.get_running_loop().create_task(self._service.warm_up())

    def check_health(self) -> None:
        if not self._service.alive:
            raise RuntimeError("the coordinator has stopped")

    @http.get("/health")
    async def health(self) -> JSONResponse:
        """200 once the first reader would not wait for anything to compile."""
        self.check_health()
        if not self._warm_up.done():
            return JSONResponse({"status": "starting"}, 503, {"Retry-After": "1"})
        self._warm_up.result()
        return JSONResponse({"status": "ok"})

    @http.get("/v1/models")
    async def models(self) -> dict[str, object]:
        model = {"id": self._name, "object": "model", "created": 0, "owned_by": "spindle"}
        return {"object": "list", "data": [model]}

    @http.post("/v1/completions")
    async def complete(self, request: CompletionRequest) -> object:
        if request.model != self._name:
            message = f"model: {request.model!r} is not served here, {self._name!r} is"
            return refusal(404, message, "model")
        prompt = request.prompt
        ids: list[int] = self._tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        commits = self._service.stream(ids, request.params())
        first = await anext(commits)  # refusals come here, while the status can still tell
        if request.stream:
            events = self._events(first, commits)
            return StreamingResponse(events, media_type="text/event-stream")
        tokens = list(first.token_ids)
        finish = first.finish
        async for commit in commits:
            tokens += commit.token_ids
            finish = commit.finish
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(tokens),
            "total_tokens": len(ids) + len(tokens),
        }
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return completion(new_identity(), self._name, text, finish, usage)

    async def _events(self, first: Commit, rest: AsyncIterator[Commit]) -> AsyncIterator[str]:
        """One server-sent event per verdict, then [DONE]."""
        identity = new_identity()
        decoder = DecodeStream(ids=[], skip_special_tokens=True)
        commit: Commit | None = first
        while commit is not None:
            steps = [decoder.step(self._tokenizer._tokenizer, token) for token in commit.token_ids]
            text = "".join(step for step in steps if step)
            body = completion(identity, self._name, text, commit.finish)
            yield f"data: {json.dumps(body)}\n\n"
            commit = await anext(rest, None)
        yield "data: [DONE]\n\n"
