"""Text to tokens and back, for clients that count or cut prompts themselves."""

from typing import Any

from deployments.ingress.requests.chat_encoding import encode_chat
from deployments.ingress.requests.token_requests import DetokenizeRequest, TokenizeRequest
from deployments.ingress.tokenizer import Tokens
from engine.errors import InvalidRequest


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
