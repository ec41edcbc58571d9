"""Log-probabilities as responses list them: of outputs in OpenAI's form, of prompts in vLLM's."""

import asyncio
from collections.abc import Sequence
from typing import Any

from deployments.ingress.answers.choices import Choice, OutputToken
from deployments.ingress.tokenizer import Tokens
from engine.protocol import TokenLogprobs

_MIN_LOGPROB = -9999.0
"""Stands for a log-probability of -inf, as in OpenAI's API, because JSON has no infinity."""


def finite(logprob: float) -> float:
    return max(logprob, _MIN_LOGPROB)


def list_logprobs(tokens: Tokens, listed: Sequence[OutputToken]) -> list[dict[str, Any]]:
    """Tokens with their log-probabilities and alternatives, as in chats and responses."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text, raw = tokens.spelling(token)
        return {"token": text, "logprob": finite(logprob), "bytes": raw}

    return [
        {
            **entry(one.token, one.logprob.logprob),
            "top_logprobs": [entry(*other) for other in one.logprob.top],
        }
        for one in listed
        if one.logprob is not None  # None only in an echo, which chats do not have
    ]


async def prompt_part(
    tokens: Tokens, choice: Choice, listed: Sequence[TokenLogprobs] | None, alternatives: int | None
) -> dict[str, Any]:
    """The field `prompt_logprobs` of a choice's prompt; nothing where it is not requested. Runs in
    a thread, so that the event loop goes on serving streams."""
    if alternatives is None or listed is None:
        return {}
    prompt_ids = choice.failover_stream.request["prompt_ids"]
    positions = await asyncio.to_thread(_positions, tokens, prompt_ids, listed, alternatives)
    return {"prompt_logprobs": positions}


def _positions(
    tokens: Tokens, prompt_ids: Sequence[int], listed: Sequence[TokenLogprobs], alternatives: int
) -> list[dict[str, Any] | None]:
    """Null for the first token, for which there is no prediction; then the token itself and its
    alternatives, by their ids."""
    positions: list[dict[str, Any] | None] = [None]
    for token, one in zip(prompt_ids[1:], listed, strict=True):
        best = one.top[:alternatives]
        ranked = [(token, one.logprob, one.rank)]
        ranked += [(other, value, rank) for rank, (other, value) in enumerate(best, 1)]
        positions.append(
            {
                str(other): {
                    "logprob": finite(value),
                    "rank": rank,
                    "decoded_token": tokens.spelling(other)[0],
                }
                for other, value, rank in ranked
            }
        )
    return positions
