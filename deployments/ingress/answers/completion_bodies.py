"""The response bodies of OpenAI's two completion APIs, whole and as chunks of a stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from deployments.ingress.answers.choices import Choice, OutputToken, Piece
from deployments.ingress.parsing.parser import (
    CallArguments,
    CallStart,
    Content,
    Delta,
    Reasoning,
)
from deployments.ingress.tokenizer import Tokens
from engine.protocol import Finish, TokenLogprobs

_MIN_LOGPROB = -9999.0
"""Stands for a log-probability of -inf, as in OpenAI's API, because JSON has no infinity."""

_MANY = 4096
"""Log-probabilities that take some milliseconds to list."""

T = TypeVar("T")


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


def message_of(deltas: Sequence[Delta]) -> dict[str, Any]:
    """A whole message of the assistant."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        match delta:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart(_, identity, name):
                function = {"name": name, "arguments": ""}
                calls.append({"id": identity, "type": "function", "function": function})
            case CallArguments(index, text):
                calls[index]["function"]["arguments"] += text
    return {
        "role": "assistant",
        "content": None if calls and not content else "".join(content),
        "refusal": None,
        **({"reasoning": "".join(reasoning)} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def delta_body(delta: Delta) -> dict[str, Any]:
    """What the delta adds to a streamed message, for a chunk of its own."""
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning": text}
        case CallStart(index, identity, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": identity, "type": "function", "function": function}
            return {"content": None, "tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of a choice as one, for a response that is not streamed."""
    return replace(
        pieces[-1],
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        deltas=tuple(delta for piece in pieces for delta in piece.deltas),
    )


@dataclass(frozen=True, slots=True)
class _Format:
    tokens: Tokens
    alternatives: int | None
    """How many to list beside each token's log-probability; None: no log-probabilities."""
    with_token_ids: bool

    async def aside(self, make: Callable[..., T], choice: Choice, piece: Piece, *more: object) -> T:
        """What `make` makes of them: of many log-probabilities in a thread, as streams go on
        meanwhile."""
        listed = len(piece.tokens) * (1 + (self.alternatives or 0))
        made = partial(make, choice, piece, *more)
        return made() if listed < _MANY else await self.tokens.in_turn(made, listed, "")


class CompletionFormat(_Format):
    prefix = "cmpl"
    full_object = "text_completion"
    chunk_object = "text_completion"

    def full(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": piece.text,
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
            **_token_ids(piece, self.with_token_ids),
            "spindle": choice.statistics,
        }

    def chunks(self, choice: Choice, piece: Piece, first: bool) -> list[dict[str, Any]]:
        if not _shows(piece, self.with_token_ids):
            return []
        body = {
            "index": choice.index,
            "text": piece.text,
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": piece.finish,
            **_token_ids(piece, self.with_token_ids),
        }
        return [_with_statistics(_with_trace(body, piece), choice, piece)]

    def _logprobs(self, tokens: Sequence[OutputToken]) -> dict[str, Any] | None:
        if self.alternatives is None:
            return None
        return {
            "tokens": [self._spell(one.token) for one in tokens],
            "token_logprobs": [
                None if one.logprob is None else finite(one.logprob.logprob) for one in tokens
            ],
            "top_logprobs": [
                None if one.logprob is None else self._top(one.token, one.logprob) for one in tokens
            ],
            "text_offset": [one.offset for one in tokens],
        }

    def _top(self, token: int, logprob: TokenLogprobs) -> dict[str, float]:
        """Includes the chosen token, so there may be one entry more than requested."""
        ranked = dict(logprob.top[: self.alternatives])
        ranked[token] = logprob.logprob
        return {self._spell(other): finite(value) for other, value in ranked.items()}

    def _spell(self, token: int) -> str:
        return self.tokens.spelling(token)[0]


class ChatFormat(_Format):
    prefix = "chatcmpl"
    full_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def full(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": message_of(piece.deltas),
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": finish_reason(choice, piece.finish),
            "stop_reason": piece.stop_reason,
            **_token_ids(piece, self.with_token_ids),
            "spindle": choice.statistics,
        }

    def chunks(self, choice: Choice, piece: Piece, first: bool) -> list[dict[str, Any]]:
        """One chunk for each delta and one for the end, as in OpenAI's streams. The first has the
        piece's tokens and trace."""
        added = [delta_body(delta) for delta in piece.deltas]
        if piece.finish is not None:
            added.append({})
        elif not added and _shows(replace(piece, text=""), self.with_token_ids):
            added.append({"content": ""})
        bare = replace(piece, tokens=(), token_ids=(), trace=None)
        bodies = [
            self._chunk(choice, bare if number else piece, delta, first and not number)
            for number, delta in enumerate(added)
        ]
        if piece.finish is not None:
            finish = {"finish_reason": finish_reason(choice, piece.finish)}
            bodies[-1] = _with_statistics({**bodies[-1], **finish}, choice, piece)
        return bodies

    def _chunk(
        self, choice: Choice, piece: Piece, delta: dict[str, Any], first: bool
    ) -> dict[str, Any]:
        role = {"role": "assistant"} if first else {}
        body = {
            "index": choice.index,
            "delta": {**role, **delta},
            "logprobs": self._logprobs(piece.tokens),
            "finish_reason": None,
            **_token_ids(piece, self.with_token_ids),
        }
        return _with_trace(body, piece)

    def _logprobs(self, tokens: Sequence[OutputToken]) -> dict[str, Any] | None:
        if self.alternatives is None:
            return None
        return {"content": list_logprobs(self.tokens, tokens), "refusal": None}


ResponseFormat = CompletionFormat | ChatFormat


def finish_reason(choice: Choice, finish: Finish | None) -> str | None:
    """A named function is called without having been chosen, which OpenAI does not count as a
    reason."""
    parser = choice.parser
    called = parser is not None and parser.calls > 0 and not parser.named
    return "tool_calls" if called and finish == "stop" else finish


def _shows(piece: Piece, with_token_ids: bool) -> bool:
    """Whether a piece has anything for the client."""
    shown = piece.text or piece.tokens or piece.finish or piece.trace
    return bool(shown or (with_token_ids and piece.token_ids))


def _token_ids(piece: Piece, requested: bool) -> dict[str, list[int]]:
    return {"token_ids": list(piece.token_ids)} if requested else {}


def _with_trace(body: dict[str, Any], piece: Piece) -> dict[str, Any]:
    return body if piece.trace is None else {**body, "spindle": {"trace": piece.trace}}


def _with_statistics(body: dict[str, Any], choice: Choice, piece: Piece) -> dict[str, Any]:
    if piece.finish is None:
        return body
    spindle = {**choice.statistics, **body.get("spindle", {})}
    return {**body, "stop_reason": piece.stop_reason, "spindle": spindle}


def model_body(
    name: str, created: int, max_context: int, parent: str | None = None
) -> dict[str, Any]:
    """`parent`: the model of which it is an adapter."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "spindle",
        "max_model_len": max_context,
        **({} if parent is None else {"parent": parent}),
    }
