"""Text to tokens and back, for clients that count or cut prompts themselves."""

from typing import Any

from deployments.ingress.token_requests import DetokenizeRequest, TokenizeRequest
from deployments.ingress.tokenizer import Tokens
from engine.errors import InvalidRequest


async def tokenize(tokens: Tokens, request: TokenizeRequest, max_context: int) -> dict[str, Any]:
    """The body of an answer to POST /tokenize, as vLLM's."""
    if request.messages is not None:
        ids = await tokens.encode_chat(
            [message.for_template for message in request.messages],
            [tool.for_template for tool in request.tools],
            request.generation_prompt,
            request.continue_final_message,
            request.chat_template_kwargs,
        )
    else:
        ids = await tokens.encode(request.prompt or "", request.add_special_tokens)
    body = {"count": len(ids), "max_model_len": max_context, "tokens": ids}
    if request.return_token_strs:
        body["token_strs"] = tokens.vocabulary_entries(ids)
    return body


def detokenize(tokens: Tokens, request: DetokenizeRequest) -> dict[str, Any]:
    """The body of an answer to POST /detokenize."""
    unknown = [token for token in request.tokens if token >= len(tokens)]
    if unknown:
        raise InvalidRequest("tokens", f"{unknown[0]} is outside the vocabulary")
    return {"prompt": tokens.decode(request.tokens)}
