"""The shapes of OpenAI's completions API that we speak; a field that we do not know is refused."""

import time
import uuid
from typing import Annotated, Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from engine.params import SamplingParams


class CompletionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str
    prompt: str | list[int]
    max_tokens: Annotated[int, Field(ge=1)] = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stream: bool = False

    def params(self) -> SamplingParams:
        """Values are checked at admission, for every way in alike."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            seed=self.seed,
        )


def completion(
    identity: str, model: str, text: str, finish: str | None, usage: dict[str, int] | None = None
) -> dict[str, Any]:
    """A whole answer, or one chunk of a stream."""
    body = {
        "id": identity,
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}],
    }
    return body if usage is None else {**body, "usage": usage}


def new_identity() -> str:
    return f"cmpl-{uuid.uuid4().hex}"


def refusal(status: int, message: str, param: str | None) -> JSONResponse:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": param, "code": None}
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse({"error": error}, status, headers)
