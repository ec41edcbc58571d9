"""OpenAI's Responses API over the chat API: the same admission, template, parsers and streams."""

import logging
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import NamedTuple

from deployments.ingress.answers.choices import Answer, Choice
from deployments.ingress.answers.completion_bodies import list_logprobs
from deployments.ingress.answers.json_text import Body
from deployments.ingress.api import Api
from deployments.ingress.clients import Client
from deployments.ingress.errors import ApiError
from deployments.ingress.responses_api.events import Event, ResponseEvents
from deployments.ingress.responses_api.request import ResponsesRequest, renamed
from deployments.ingress.responses_api.stored import StoredResponses
from deployments.ingress.tokenizer import LONG_TEXT
from engine.errors import InvalidRequest
from engine.protocol import Finish
from engine.scopes import Scope

_LOG = logging.getLogger(__name__)
_CODES = {429: "rate_limit_exceeded"}


class Opened(NamedTuple):
    """A request that is being answered."""

    request: ResponsesRequest
    """With the whole conversation as its input."""
    answer: Answer
    scope: Scope


class ResponsesApi:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._stored = StoredResponses(api.config.limits.stored_response_bytes)

    async def open(
        self, request: ResponsesRequest, client: Client, request_id: str | None = None
    ) -> Opened:
        """Raises ApiError. The caller must close the answer. `request_id`: the client's name for
        the request."""
        scope = Scope(client.tenant, request.cache_salt or "")
        whole = self._stored.continued(request, scope)
        if whole is not request:
            await self._api.tokens.in_turn(whole.prepare, LONG_TEXT, client.tenant)
        try:
            answer = await self._api.open(whole.chat, client, request_id)
        except (ApiError, InvalidRequest) as error:
            raise renamed(ApiError.of(error)) from None
        return Opened(whole, answer, scope)

    async def full_response(self, opened: Opened) -> Body:
        """Made by the same events as a stream."""
        events = self._events(opened)
        async for _ in self._added(events, opened):
            pass
        return events.response

    async def events(self, opened: Opened) -> AsyncGenerator[Event, None]:
        """The events of a stream; an error becomes the last one."""
        events, answer = self._events(opened), opened.answer
        for event in events.start():
            yield event
        try:
            async for event in self._added(events, opened):
                yield event
        except ApiError as error:
            yield events.fail(_CODES.get(error.status, "server_error"), error.message)
        except Exception:
            _LOG.exception("request %s fails", answer.name)
            yield events.fail("server_error", ApiError.internal(answer.name).message)

    async def _added(self, events: ResponseEvents, opened: Opened) -> AsyncGenerator[Event, None]:
        """The events that the answer's pieces cause. Stores the response when it is whole."""
        answer = opened.answer
        async for choice, piece in answer.pieces():
            for event in events.add(piece.deltas, list_logprobs(self._api.tokens, piece.tokens)):
                yield event
            if piece.finish is not None:
                ended = await self._end(events, choice, opened, piece.finish)
                response = events.response
                if response["store"]:
                    self._stored.keep(
                        opened.request, opened.scope, response["id"], response["output"]
                    )
                for event in ended:
                    yield event

    def _events(self, opened: Opened) -> ResponseEvents:
        request = opened.request
        return ResponseEvents(
            {
                "id": f"resp_{opened.answer.public_id}",
                "object": "response",
                "created_at": int(time.time()),
                "model": request.model,
                **request.echoed,
                "store": self._stored.stores(request),
            }
        )

    async def _end(
        self, events: ResponseEvents, choice: Choice, opened: Opened, finish: Finish
    ) -> list[Event]:
        usage = opened.answer.usage
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
            "output_tokens_details": {"reasoning_tokens": await self._count(reasoning, opened)},
            "total_tokens": usage["total_tokens"],
        }
        end = events.stop_short if finish == "length" else events.complete
        return end(counted, spindle=choice.statistics)

    async def _count(self, text: str, opened: Opened) -> int:
        """A text's tokens, in a thread: for a long one other streams would wait too long."""
        tokens = self._api.tokens
        encode = partial(tokens.encode_blocking, text, add_special_tokens=False)
        tenant = opened.scope.tenant
        return len(await tokens.in_turn(encode, len(text), tenant)) if text else 0
