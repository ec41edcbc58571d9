"""OpenAI's Responses API over the chat API: the same admission, template, parsers and streams."""

import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from deployments.ingress.answers.choices import Answer, Choice, OutputToken, Piece
from deployments.ingress.answers.completion_bodies import CollectedChoice
from deployments.ingress.answers.json_text import Body
from deployments.ingress.answers.logprobs import list_logprobs
from deployments.ingress.api import Api
from deployments.ingress.clients import Client
from deployments.ingress.errors import ApiError
from deployments.ingress.parsing.parser import CallStart, Content, Delta
from deployments.ingress.responses_api.events import Event, ResponseEvents
from deployments.ingress.responses_api.request import ResponsesRequest, renamed
from engine.errors import InvalidRequest
from engine.protocol import Finish


class ContentTokens:
    """Finds what a parser has found again in the text, in its order: tags, calls, reasoning and the
    white space beside them have no tokens of the message."""

    def __init__(self) -> None:
        self._text = ""
        self._read = 0
        """The end of what was found last."""
        self._waiting: deque[OutputToken] = deque()
        """Tokens that end after that place."""

    def take(
        self, text: str, tokens: Sequence[OutputToken], deltas: Sequence[Delta]
    ) -> list[OutputToken]:
        """`text`, `tokens`: what has been added to the output. `deltas`: what the parser has found
        with it. Returns the tokens of its content."""
        self._text += text
        self._waiting += tokens
        content: list[OutputToken] = []
        for delta in deltas:
            part = delta.name if isinstance(delta, CallStart) else delta.text
            start = self._text.find(part, self._read)
            if start < 0:  # arguments that are written anew as JSON
                continue
            self._read = start + len(part)
            passed = self._pass()
            if isinstance(delta, Content):
                content += [token for token, end in passed if end > start]
        return content

    def _pass(self) -> list[tuple[OutputToken, int]]:
        """The tokens that begin before the end of what was found, each with its own end."""
        passed = []
        while self._waiting and self._waiting[0].offset < self._read:
            token = self._waiting.popleft()
            end = self._waiting[0].offset if self._waiting else len(self._text)
            passed.append((token, end))
        return passed


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
        (choice,) = answer.choices
        if choice.parser is None or request.wants_logprobs:
            return await self._built_up(request, answer)
        collected = CollectedChoice()
        async for _, piece in answer.pieces():
            collected.add(piece)
        events = self._events(request, answer)
        events.add(choice.parser.whole(collected.text, collected.token_ids))
        self._end(events, choice, answer, collected.finish)
        return events.response

    async def _built_up(self, request: ResponsesRequest, answer: Answer) -> Body:
        """The response piece by piece, as in a stream: its tokens are known with each one."""
        events, found = self._events(request, answer), ContentTokens()
        async for choice, piece in answer.pieces():
            events.add(*self._found(found, choice, piece))
            if piece.finish is not None:
                self._end(events, choice, answer, piece.finish)
        return events.response

    async def events(
        self, request: ResponsesRequest, answer: Answer
    ) -> AsyncGenerator[Event, None]:
        """The events of a stream; an error becomes the last one."""
        events, found = self._events(request, answer), ContentTokens()
        for event in events.start():
            yield event
        try:
            async for choice, piece in answer.pieces():
                for event in events.add(*self._found(found, choice, piece)):
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

    def _found(
        self, found: ContentTokens, choice: Choice, piece: Piece
    ) -> tuple[list[Delta], list[dict[str, Any]]]:
        """The deltas of a piece, and the log-probabilities of the message's tokens."""
        deltas, tokens = _deltas(choice, piece), piece.tokens
        if choice.parser is not None:
            tokens = tuple(found.take(piece.text, tokens, deltas) if tokens else ())
        return deltas, list_logprobs(self._api.tokens, tokens)

    def _count(self, text: str) -> int:
        return len(self._api.tokens.encode_blocking(text, add_special_tokens=False))


def _deltas(choice: Choice, piece: Piece) -> list[Delta]:
    if choice.parser is None:
        return [Content(piece.text)] if piece.text else []
    deltas = choice.parser.push(piece.text, piece.token_ids)
    return deltas if piece.finish is None else [*deltas, *choice.parser.finish()]
