"""Encodes a request's messages by the checkpoint's chat template."""

from collections.abc import Sequence

from deployments.ingress.requests.chat_messages import Message
from deployments.ingress.requests.completions import ChatRequest
from deployments.ingress.requests.json_bounds import json_length
from deployments.ingress.requests.token_requests import TokenizeRequest
from deployments.ingress.tokenizer import LONG_TEXT, Tokens


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
