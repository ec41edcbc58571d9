"""The response bodies of OpenAI's two completion APIs, whole and as chunks of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from deployments.ingress.answer import Choice, OutputToken, Piece
from deployments.ingress.tokenizer import Tokens
from deployments.messages import Logprob
from engine.protocol import Finish

_MIN_LOGPROB = -9999.0
"""Stands for a log-probability of -inf, as in OpenAI's API, because JSON has no infinity."""


@dataclass(slots=True)
class CollectedChoice:
    """One choice's pieces, joined for a response that is not streamed."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    tokens: list[OutputToken] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.token_ids += piece.token_ids
        self.tokens += piece.tokens
        self.finish = piece.finish


class ResponseFormat(Protocol):
    """The response format of one of the two APIs."""

    @property
    def prefix(self) -> str:
        """Prefix of response ids."""
        ...

    @property
    def full_object(self) -> str: ...

    @property
    def chunk_object(self) -> str: ...

    def full(self, choice: Choice, collected: CollectedChoice) -> dict[str, Any]: ...

    def chunk(self, choice: Choice, piece: Piece, first: bool) -> dict[str, Any]: ...


class CompletionFormat:
    prefix = "cmpl"
    full_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokens: Tokens, with_logprobs: bool, with_token_ids: bool) -> None:
        self._tokens = tokens
        self._with_logprobs = with_logprobs
        self._with_token_ids = with_token_ids

    def full(self, choice: Choice, collected: CollectedChoice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": collected.text,
            "logprobs": self._logprobs(collected.tokens),
            "finish_reason": collected.finish,
            **_token_ids(collected, self._with_token_ids),
            "spindle": choice.statistics,
        }

    def chunk(self, choice: Choice, piece: Piece, first: bool) -> dict[str, Any]:
        body = {
            "index": choice.index,
            "text": piece.text,
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": piece.finish,
            **_token_ids(piece, self._with_token_ids),
        }
        return _with_statistics(body, choice, piece)

    def _logprobs(self, tokens: Sequence[OutputToken]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        return {
            "tokens": [self._spell(one.token) for one in tokens],
            "token_logprobs": [
                None if one.logprob is None else _finite(one.logprob["logprob"]) for one in tokens
            ],
            "top_logprobs": [
                None if one.logprob is None else self._top(one.token, one.logprob) for one in tokens
            ],
            "text_offset": [one.offset for one in tokens],
        }

    def _top(self, token: int, logprob: Logprob) -> dict[str, float]:
        """Includes the chosen token, so there may be one entry more than requested."""
        ranked = {int(other): value for other, value in logprob["top"]}
        ranked[token] = logprob["logprob"]
        return {self._spell(other): _finite(value) for other, value in ranked.items()}

    def _spell(self, token: int) -> str:
        return self._tokens.spelling(token)[0]


class ChatFormat:
    prefix = "chatcmpl"
    full_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokens: Tokens, with_logprobs: bool, with_token_ids: bool) -> None:
        self._tokens = tokens
        self._with_logprobs = with_logprobs
        self._with_token_ids = with_token_ids

    def full(self, choice: Choice, collected: CollectedChoice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": collected.text, "refusal": None},
            "logprobs": self._logprobs(collected.tokens),
            "finish_reason": collected.finish,
            **_token_ids(collected, self._with_token_ids),
            "spindle": choice.statistics,
        }

    def chunk(self, choice: Choice, piece: Piece, first: bool) -> dict[str, Any]:
        role = {"role": "assistant"} if first else {}
        body = {
            "index": choice.index,
            "delta": {**role, "content": piece.text},
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": piece.finish,
            **_token_ids(piece, self._with_token_ids),
        }
        return _with_statistics(body, choice, piece)

    def _logprobs(self, tokens: Sequence[OutputToken]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        content = [
            {
                **self._entry(one.token, one.logprob["logprob"]),
                "top_logprobs": [
                    self._entry(int(other), value) for other, value in one.logprob["top"]
                ],
            }
            for one in tokens
            if one.logprob is not None  # None only in an echo, which chats do not have
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text, raw = self._tokens.spelling(token)
        return {"token": text, "logprob": _finite(logprob), "bytes": raw}


def _token_ids(piece: Piece | CollectedChoice, requested: bool) -> dict[str, list[int]]:
    return {"token_ids": list(piece.token_ids)} if requested else {}


def _with_statistics(body: dict[str, Any], choice: Choice, piece: Piece) -> dict[str, Any]:
    return body if piece.finish is None else {**body, "spindle": choice.statistics}


def _finite(logprob: float) -> float:
    return max(logprob, _MIN_LOGPROB)


def model_body(name: str, created: int, max_context: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "spindle",
        "max_model_len": max_context,
    }
