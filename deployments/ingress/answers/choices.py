"""Serves all choices of one client's request concurrently and measures their latencies at the
ingress."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from deployments.ingress.answers.output_text import AnswerText, Echo, StopRule, TextPiece
from deployments.ingress.answers.trace import decision, trace_body
from deployments.ingress.failover import FailoverStream
from deployments.ingress.heartbeat_sender import HeartbeatSender
from deployments.ingress.parsing.parser import Content, Delta, FormatParser
from deployments.ingress.tokenizer import Tokens
from engine.protocol import Finish, TokenLogprobs


class Usage(TypedDict):
    """As in OpenAI's API."""

    prompt_tokens: int
    """Tokens of all prompts, each prompt counted once."""
    completion_tokens: int
    """Tokens of all choices."""
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    """`cached_tokens`: those found in the prefix cache."""


@dataclass(frozen=True, slots=True)
class OutputToken:
    """One token as it is listed among the log-probabilities."""

    token: int
    logprob: TokenLogprobs | None
    """None for the first token of an echoed prompt, for which the model computes no probability."""
    offset: int
    """Index in the choice's text at which the token begins."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a choice that one message of its replica adds."""

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[OutputToken, ...]
    """Empty unless log-probabilities were requested."""
    produced: int
    """Output tokens of the choice up to and including this piece."""
    finish: Finish | None
    stop_reason: str | int | None = None
    """The stop string or requested stop token that has ended the choice."""
    trace: dict[str, Any] | None = None
    """How the tokens came about, if requested."""
    deltas: Sequence[Delta] = ()
    """The text as the parser has understood it, for chats."""


class Choice:
    def __init__(
        self,
        index: int,
        failover_stream: FailoverStream,
        stop: StopRule,
        tokens: Tokens,
        arrived_s: float,
        echo: Echo | None = None,
        echo_only: bool = False,
        special: bool = False,
        parser: FormatParser | None = None,
    ) -> None:
        """`arrived_s`: when the request did, by the event loop. `echo`: the prompt, which the
        choice repeats first. `echo_only`: no output follows it. `special`: the text has special
        tokens. `parser`: finds calls and reasoning in the text; None: there are none."""
        self.index = index
        self.parser = parser
        self.failover_stream = failover_stream
        self.produced = 0
        """Output tokens so far, without those after a stop string."""
        self.finish: Finish | None = None
        self._echo = echo
        self._echo_only = echo_only
        start_offset = 0 if echo is None else len(echo.text)
        special = special or (parser is not None and parser.keeps_special)
        self._text = AnswerText(tokens, stop, start_offset, special)
        self._tokens = tokens
        self._clock = asyncio.get_running_loop().time
        self._arrived = arrived_s
        self._first: float | None = None
        self._last = self._arrived

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yields the choice's pieces; the last one has a finish."""
        async for commit in self.failover_stream.commits():
            if self._echo_only:
                added = self._text.take([], "length")
            else:
                added = self._text.take(commit["token_ids"], commit["finish"])
            echo = self._echo if self._first is None else None
            self.produced += added.tokens
            self._last = self._clock()
            self._first = self._first or self._last
            logprobs = commit["logprobs"] or []
            piece = Piece(
                text=added.text,
                token_ids=tuple(commit["token_ids"][: added.tokens]),
                tokens=tuple(
                    OutputToken(*one)
                    for one in zip(commit["token_ids"], logprobs, added.offsets, strict=False)
                ),
                produced=self.produced,
                finish=added.finish,
                stop_reason=added.stop_reason,
                trace=trace_body(
                    commit, added.texts, self.failover_stream.attempt + 1, self._tokens
                ),
                deltas=self._deltas(added),
            )
            self.finish = piece.finish
            yield piece if echo is None else _with_echo(echo, piece, commit["prompt_logprobs"])
            if added.finish is not None:
                return

    def _deltas(self, added: TextPiece) -> list[Delta]:
        if self.parser is None:
            return [Content(added.text)] if added.text else []
        deltas = self.parser.push(added.text)
        return deltas if added.finish is None else [*deltas, *self.parser.finish()]

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were in the verifier's prefix cache."""
        return self.failover_stream.statistics.cached or 0

    @property
    def first_token_s(self) -> float:
        """Seconds from arrival to the first token, or until now without one."""
        return (self._last if self._first is None else self._first) - self._arrived

    @property
    def last_token_s(self) -> float:
        """Seconds from arrival to the last token so far."""
        return self._last - self._arrived

    @property
    def statistics(self) -> dict[str, object]:
        """Returned to the client under `spindle`; docs/api.md explains each field."""
        statistics = self.failover_stream.statistics
        between = self.produced - 1
        return {
            "rounds": statistics.rounds,
            "drafted": statistics.drafted,
            "accepted": statistics.accepted,
            "rounds_by_lane": statistics.by_lane,
            "decision": decision(
                self.failover_stream.request["speculation"], statistics.drafted > 0
            ),
            "queue_s": statistics.queue_s or 0.0,
            "ttft_s": self.first_token_s,
            "tpot_s": (self.last_token_s - self.first_token_s) / between if between > 0 else None,
            "seed": self.failover_stream.request["params"].seed,
            "replica": self.failover_stream.replica,
            "attempts": self.failover_stream.attempt + 1,
        }


def _with_echo(echo: Echo, piece: Piece, logprobs: Sequence[TokenLogprobs] | None) -> Piece:
    """The piece preceded by the echoed prompt. `logprobs`: those of its tokens except the first,
    if requested."""
    text = echo.text + piece.text
    if logprobs is None:
        return replace(piece, text=text)
    prompt = zip(echo.token_ids, [None, *logprobs], echo.offsets, strict=True)
    return replace(piece, text=text, tokens=(*(OutputToken(*one) for one in prompt), *piece.tokens))


@dataclass(frozen=True, slots=True)
class _ChoiceFailed:
    error: Exception


class Answer:
    """The choices of one request, admitted together or not at all, with their pieces merged in the
    order in which they arrive."""

    def __init__(
        self,
        name: str,
        choices: Sequence[Choice],
        prompt_tokens: int,
        heartbeats: HeartbeatSender,
        on_close: Callable[["Answer"], None],
        public_id: str | None = None,
        choices_per_prompt: int = 1,
    ) -> None:
        """`on_close` is called once, when the answer is closed. `public_id`: the id
        in the response; default: the name."""
        self.name = name
        self.public_id = public_id or name
        self.choices = choices
        self.prompt_tokens = prompt_tokens
        self._heartbeats = heartbeats
        self._on_close = on_close
        self._choices_per_prompt = choices_per_prompt
        self._closed = False
        self.error: BaseException | None = None
        """The error that ended the answer early."""
        self._openings: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        # Size 1, so that nothing accumulates here: a client that does not read blocks only its own
        # choices.
        self._queue: asyncio.Queue[tuple[Choice, Piece | _ChoiceFailed]] = asyncio.Queue(1)

    async def open(self) -> None:
        """Raises ApiError if a choice is refused, after cancelling the others."""
        for choice in self.choices:
            self._heartbeats.add(choice.failover_stream)
        opens = [one.failover_stream.open() for one in self.choices]
        openings = self._openings = [asyncio.create_task(one) for one in opens]
        try:
            await asyncio.gather(*openings)
            self._heartbeats.record_replicas(self.choices[0].failover_stream.replicas)
        except BaseException as error:
            self.error = error = self.error or error
            for opening in openings:
                opening.cancel()
            await asyncio.gather(*openings, return_exceptions=True)
            self.close()
            raise error

    async def pieces(self) -> AsyncIterator[tuple[Choice, Piece]]:
        """Yields all choices' pieces. Requesting the next one acknowledges the last one as read,
        though some may be in transit (BackpressureWindow)."""
        self._readers = [asyncio.create_task(self._read(choice)) for choice in self.choices]
        unfinished = len(self.choices)
        while unfinished:
            choice, piece = await self._queue.get()
            if isinstance(piece, _ChoiceFailed):
                self.error = piece.error
                raise piece.error
            yield choice, piece
            self._heartbeats.record_written(choice.failover_stream, piece.produced)
            if piece.finish is not None:
                unfinished -= 1
                self._end(choice)

    async def _read(self, choice: Choice) -> None:
        try:
            async for piece in choice.pieces():
                await self._queue.put((choice, piece))
        except Exception as error:
            await self._queue.put((choice, _ChoiceFailed(error)))

    async def fail(self, error: Exception) -> None:
        """Ends it early; returns when its reader has the reason."""
        self.error = error
        for task in (*self._openings, *self._readers):
            task.cancel()
        await self._queue.put((self.choices[0], _ChoiceFailed(error)))

    def _end(self, choice: Choice) -> None:
        choice.failover_stream.close()
        self._heartbeats.remove(choice.failover_stream)

    def close(self) -> None:
        """Cancels unfinished choices, also at their replicas. Must always be called."""
        for reader in self._readers:
            reader.cancel()
        for choice in self.choices:
            self._end(choice)
        if not self._closed:
            self._closed = True
            self._on_close(self)

    @property
    def usage(self) -> Usage:
        """Each prompt counts once, and as cached what was so for all of its choices: the others
        may have had it from the first."""
        per_prompt = self._choices_per_prompt
        cached = sum(
            min(choice.cached_tokens for choice in self.choices[first : first + per_prompt])
            for first in range(0, len(self.choices), per_prompt)
        )
        produced = sum(choice.produced for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": produced,
            "total_tokens": self.prompt_tokens + produced,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
