"""OpenAI's Responses API over the chat API: the same admission, template, parsers and streams."""

import logging
import time
from collections.abc import AsyncGenerator

from deployments.ingress.answers.choices import Answer, Choice
from deployments.ingress.answers.completion_bodies import list_logprobs
from deployments.ingress.answers.json_text import Body
from deployments.ingress.api import Api
from deployments.ingress.clients import Client
from deployments.ingress.errors import ApiError
from deployments.ingress.responses_api.events import Event, ResponseEvents
from deployments.ingress.responses_api.request import ResponsesRequest, renamed
from engine.errors import InvalidRequest
from engine.protocol import Finish

_LOG = logging.getLogger(__name__)
_CODES = {429: "rate_limit_exceeded"}


class ResponsesApi:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def open(
        self, request: ResponsesRequest, client: Client, request_id: str | None = None
    ) -> Answer:
        """Raises ApiError. The caller must close the answer. `request_id`: the client's name for
        the request."""
        try:
            return await self._api.open(request.chat, client, request_id)
        except (ApiError, InvalidRequest) as error:
            raise renamed(ApiError.of(error)) from None

    async def full_response(self, request: ResponsesRequest, answer: Answer) -> Body:
        """Made by the same events as a stream."""
        events = self._events(request, answer)
        async for _ in self._added(events, answer):
            pass
        return events.response

    async def events(
        self, request: ResponsesRequest, answer: Answer
    ) -> AsyncGenerator[Event, None]:
        """The events of a stream; an error becomes the last one."""
        events = self._events(request, answer)
        for event in events.start():
            yield event
        try:
            async for event in self._added(events, answer):
                yield event
        except ApiError as error:
            yield events.fail(_CODES.get(error.status, "server_error"), error.message)
        except Exception:
            _LOG.exception("request %s fails", answer.name)
            yield events.fail("server_error", ApiError.internal(answer.name).message)

    async def _added(self, events: ResponseEvents, answer: Answer) -> AsyncGenerator[Event, None]:
        """The events that the answer's pieces cause."""
        async for choice, piece in answer.pieces():
            for event in events.add(piece.deltas, list_logprobs(self._api.tokens, piece.tokens)):
                yield event
            if piece.finish is not None:
                for event in self._end(events, choice, answer, piece.finish):
                    yield event

    def _events(self, request: ResponsesRequest, answer: Answer) -> ResponseEvents:
        return ResponseEvents(
            {
                "id": f"resp_{answer.public_id}",
                "object": "response",
                "created_at": int(time.time()),
                "model": request.model,
                **request.echoed,
            }
        )

    def _end(
        self, events: ResponseEvents, choice: Choice, answer: Answer, finish: Finish | None
    ) -> list[Event]:
        usage = answer.usage
        reasoning = "".join(
            part["text"]
            for item in events.response["output"]
            if item["type"] == "reasoning"
            for part in item["content"]
        )
        counted = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                **usage["prompt_tokens_details"],
                "cache_write_tokens": 0,
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._count(reasoning)},
            "total_tokens": usage["total_tokens"],
        }
        end = events.stop_short if finish == "length" else events.complete
        return end(counted, spindle=choice.statistics)

    def _count(self, text: str) -> int:
        return len(self._api.tokens.encode_blocking(text, add_special_tokens=False))
