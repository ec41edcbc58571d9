"""OpenAI's Responses API over the chat API: the same admission, template, parsers and streams."""

import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from pydantic import ValidationError

from deployments.ingress.answer import Answer, Choice, Piece
from deployments.ingress.api import Api, Body
from deployments.ingress.api_keys import Client
from deployments.ingress.errors import ApiError
from deployments.ingress.parsing.parser import Content, Delta
from deployments.ingress.responses import CollectedChoice, list_logprobs
from deployments.ingress.responses_api.events import Event, ResponseEvents
from deployments.ingress.responses_api.request import RENAMED, ResponsesRequest
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
            chat = request.chat()
            if request.wants_logprobs and self._api.parsers.parses(chat.tool_use):
                raise InvalidRequest(
                    "top_logprobs",
                    "not for outputs that are parsed for calls or reasoning; chats have them",
                )
            return await self._api.open(chat, client, request_id)
        except (ApiError, InvalidRequest, ValidationError) as error:
            raise _renamed(ApiError.of(error)) from None

    async def full_response(self, request: ResponsesRequest, answer: Answer) -> Body:
        collected = CollectedChoice()
        async for _, piece in answer.pieces():
            collected.add(piece)
        (choice,) = answer.choices
        if choice.parser is None:
            deltas: list[Delta] = [Content(collected.text)]
        else:
            deltas = choice.parser.whole(collected.text, collected.token_ids)
        events = self._events(request, answer)
        events.add(deltas, self._logprobs(collected))
        self._end(events, choice, answer, collected.finish)
        return events.response

    async def events(
        self, request: ResponsesRequest, answer: Answer
    ) -> AsyncGenerator[Event, None]:
        """The events of a stream; an error becomes the last one."""
        events = self._events(request, answer)
        for event in events.start():
            yield event
        try:
            async for choice, piece in answer.pieces():
                for event in events.add(_deltas(choice, piece), self._logprobs(piece)):
                    yield event
                if piece.finish is not None:
                    for event in self._end(events, choice, answer, piece.finish):
                        yield event
        except ApiError as error:
            yield events.fail(_CODES.get(error.status, "server_error"), error.message)
        except Exception:
            _LOG.exception("request %s fails", answer.name)
            yield events.fail("server_error", ApiError.internal(answer.name).message)

    def _events(self, request: ResponsesRequest, answer: Answer) -> ResponseEvents:
        return ResponseEvents(
            {
                "id": f"resp_{answer.public_id}",
                "object": "response",
                "created_at": int(time.time()),
                "model": self._api.config.served_name,
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

    def _logprobs(self, output: Piece | CollectedChoice) -> list[dict[str, Any]]:
        return list_logprobs(self._api.tokens, output.tokens)

    def _count(self, text: str) -> int:
        return len(self._api.tokens.encode_blocking(text, add_special_tokens=False))


def _deltas(choice: Choice, piece: Piece) -> list[Delta]:
    if choice.parser is None:
        return [Content(piece.text)] if piece.text else []
    deltas = choice.parser.push(piece.text, piece.token_ids)
    return deltas if piece.finish is None else [*deltas, *choice.parser.finish()]


def _renamed(error: ApiError) -> ApiError:
    """A chat's error with the field's name in this API."""
    name = RENAMED.get(error.param or "")
    if name is None:
        return error
    message = f"{name}{error.message.removeprefix(error.param or '')}"
    return ApiError(error.status, message, name, error.code)
