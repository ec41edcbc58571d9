"""Text to tokens and back, for clients that count or cut prompts themselves; and chats by the
checkpoint's template."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from deployments.ingress.requests.chat_messages import Message, Messages
from deployments.ingress.requests.completions import ChatRequest
from deployments.ingress.requests.fields import Fields, TemplateFields, Text, TokenId
from deployments.ingress.requests.json_bounds import json_length
from deployments.ingress.requests.tools import Tools
from deployments.ingress.requests.unsupported import SHARED, Unsupported
from deployments.ingress.tokenizer import LONG_TEXT, Tokens
from engine.errors import InvalidRequest

MAX_DECODED = 2**18
"""Tokens; decoding them takes up to 50 ms, while no other thread runs."""


class TokenizeRequest(TemplateFields):
    """POST /tokenize: a prompt, or messages rendered by the chat template."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = SHARED

    model: str | None = None
    """The served model's name."""
    prompt: Text | None = None
    """The text to encode."""
    messages: Messages | None = None
    """The messages to render and encode."""
    tools: Tools = []
    """For messages only: functions that the template shows to the model."""
    add_special_tokens: bool = True
    """For a prompt only; a chat template adds its own."""
    return_token_strs: bool = False
    """Also return the tokens as the vocabulary spells them."""

    @model_validator(mode="after")
    def _check_exactly_one_prompt(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("prompt", "give either prompt or messages")
        return self


class DetokenizeRequest(Fields):
    """POST /detokenize."""

    model: str | None = None
    """The served model's name."""
    tokens: Annotated[list[TokenId], Field(max_length=MAX_DECODED, fail_fast=True)]
    """The tokens to decode."""


async def encode_chat(
    tokens: Tokens, request: ChatRequest | TokenizeRequest, messages: Sequence[Message], client: str
) -> list[int]:
    """`client`: whose turn it takes."""
    return await tokens.encode_chat(
        (message.for_template for message in messages),
        (tool.for_template for tool in request.tools),
        request.generation_prompt,
        request.continue_final_message,
        request.chat_template_kwargs,
        client,
        _size(request, messages),
    )


def _size(request: ChatRequest | TokenizeRequest, messages: Sequence[Message]) -> int:
    """About how many characters the template is given; not exact where it is a long text anyway."""
    calls = [call for message in messages for call in message.tool_calls or ()]
    texts = [
        *(message.text for message in messages),
        *(message.reasoning or message.reasoning_content or "" for message in messages),
        *(call.function.arguments for call in calls),
    ]
    functions = [tool.function for tool in request.tools]
    return sum(map(len, texts)) + json_length(
        [
            request.chat_template_kwargs,
            *(function.description for function in functions),
            *(function.parameters for function in functions),
            *(one.model_extra for one in (*request.tools, *functions)),
        ],
        LONG_TEXT,
    )


async def tokenize(
    tokens: Tokens, request: TokenizeRequest, max_context: int, client: str
) -> dict[str, Any]:
    """The body of an answer to POST /tokenize, as vLLM's. `client`: whose turn it takes."""
    if request.messages is not None:
        ids = await encode_chat(tokens, request, request.messages, client)
    else:
        ids = await tokens.encode(request.prompt or "", request.add_special_tokens, client)
    body = {"count": len(ids), "max_model_len": max_context, "tokens": ids}
    if request.return_token_strs:
        body["token_strs"] = await tokens.in_turn(
            lambda: tokens.vocabulary_entries(ids), len(ids), client
        )
    return body


async def detokenize(tokens: Tokens, request: DetokenizeRequest, client: str) -> dict[str, Any]:
    """The body of an answer to POST /detokenize."""
    largest = max(request.tokens, default=0)
    if largest >= len(tokens):
        raise InvalidRequest("tokens", f"{largest} is outside the vocabulary")
    text = await tokens.in_turn(lambda: tokens.decode(request.tokens), len(request.tokens), client)
    return {"prompt": text}
