"""The requests that encode and decode text without generating any."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from deployments.ingress.requests.chat_messages import Messages
from deployments.ingress.requests.fields import Fields, TemplateFields, Text, TokenId
from deployments.ingress.requests.tools import Tools
from deployments.ingress.requests.unsupported import SHARED, Unsupported
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
