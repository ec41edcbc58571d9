"""All choices of one client's request, served side by side, with the ingress's own clock."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from deployments.ingress.failover import FailoverStream
from deployments.ingress.heartbeat_sender import HeartbeatSender
from deployments.ingress.output_text import AnswerText, Echo
from deployments.ingress.tokenizer import Tokens
from deployments.messages import Logprob
from engine.protocol import Finish


@dataclass(frozen=True, slots=True)
class OutputToken:
    """One token as log-probabilities show it."""

    token: int
    logprob: Logprob | None
    """None: an echoed prompt's first token, of which the model says nothing."""
    offset: int
    """Where in the choice's text it begins."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one verdict adds to a choice."""

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[OutputToken, ...]
    """Empty unless log-probabilities were asked for."""
    produced: int
    """Output tokens up to here."""
    finish: Finish | None


class Choice:
    def __init__(
        self,
        index: int,
        failover_stream: FailoverStream,
        stops: Sequence[str],
        tokens: Tokens,
        echo: Echo | None = None,
        echo_only: bool = False,
    ) -> None:
        """`echo`: what it begins with. `echo_only`: and nothing follows."""
        self.index = index
        self.failover_stream = failover_stream
        self.produced = 0
        """Output tokens, those behind a stop string not counted."""
        min_tokens = failover_stream.request["params"]["min_tokens"]
        self._echo = echo
        self._echo_only = echo_only
        begins_at = 0 if echo is None else len(echo.text)
        self._text = AnswerText(tokens, stops, min_tokens, begins_at)
        self._clock = asyncio.get_running_loop().time
        self._arrived = self._clock()
        self._first: float | None = None
        self._last = self._arrived

    async def pieces(self) -> AsyncIterator[Piece]:
        """Up to the one with a finish."""
        async for commit in self.failover_stream.commits():
            if self._echo_only:
                said = self._text.take([], "length")
            else:
                said = self._text.take(commit["token_ids"], commit["finish"])
            echo = self._echo if self._first is None else None
            self.produced += said.tokens
            self._last = self._clock()
            self._first = self._first or self._last
            logprobs = commit["logprobs"] or []
            piece = Piece(
                text=said.text,
                token_ids=tuple(commit["token_ids"][: said.tokens]),
                tokens=tuple(
                    OutputToken(*one)
                    for one in zip(commit["token_ids"], logprobs, said.offsets, strict=False)
                ),
                produced=self.produced,
                finish=said.finish,
            )
            yield piece if echo is None else _behind(echo, commit["prompt_logprobs"], piece)
            if said.finish is not None:
                return

    @property
    def statistics(self) -> dict[str, object]:
        """Told to the client under `spindle`; docs/api.md explains each."""
        told = self.failover_stream.statistics
        first = self._last if self._first is None else self._first
        between = self.produced - 1
        return {
            "rounds": told["rounds"],
            "drafted": told["drafted"],
            "accepted": told["accepted"],
            "rounds_by_lane": told["by_lane"],
            "queue_s": told["queue_s"],
            "ttft_s": first - self._arrived,
            "tpot_s": (self._last - first) / between if between > 0 else None,
            "seed": self.failover_stream.request["seed"],
            "replica": self.failover_stream.replica,
            "attempts": self.failover_stream.attempt + 1,
        }


def _behind(echo: Echo, logprobs: Sequence[Logprob] | None, piece: Piece) -> Piece:
    """The piece with the prompt before it; `logprobs` are those of its tokens but the first."""
    text = echo.text + piece.text
    if logprobs is None:
        return replace(piece, text=text)
    told = zip(echo.token_ids, [None, *logprobs], echo.offsets, strict=True)
    return replace(piece, text=text, tokens=(*(OutputToken(*one) for one in told), *piece.tokens))


@dataclass(frozen=True, slots=True)
class _Broken:
    error: Exception


class Answer:
    """Choices that are admitted together or not at all, merged in the order of their verdicts."""

    def __init__(
        self, name: str, choices: Sequence[Choice], prompt_tokens: int, signs: HeartbeatSender
    ) -> None:
        self.name = name
        self.choices = choices
        self.prompt_tokens = prompt_tokens
        self._heartbeats = signs
        self._pumps: list[asyncio.Task[None]] = []
        # One: a client that does not read holds up its own choices, and nothing piles up here.
        self._queue: asyncio.Queue[tuple[Choice, Piece | _Broken]] = asyncio.Queue(1)

    async def open(self) -> None:
        """ApiError when one choice is refused; the others are then cancelled."""
        for choice in self.choices:
            self._heartbeats.join(choice.failover_stream)
        openings = [asyncio.create_task(one.failover_stream.open()) for one in self.choices]
        try:
            await asyncio.gather(*openings)
        except BaseException:
            for opening in openings:
                opening.cancel()
            await asyncio.gather(*openings, return_exceptions=True)
            self.close()
            raise

    async def pieces(self) -> AsyncIterator[tuple[Choice, Piece]]:
        """By asking for the next one, the caller says that the last one has been written."""
        self._pumps = [asyncio.create_task(self._pump(choice)) for choice in self.choices]
        unfinished = len(self.choices)
        while unfinished:
            choice, piece = await self._queue.get()
            if isinstance(piece, _Broken):
                raise piece.error
            yield choice, piece
            self._heartbeats.wrote(choice.failover_stream, piece.produced)
            if piece.finish is not None:
                unfinished -= 1
                self._leave(choice)

    async def _pump(self, choice: Choice) -> None:
        try:
            async for piece in choice.pieces():
                await self._queue.put((choice, piece))
        except Exception as error:
            await self._queue.put((choice, _Broken(error)))

    def _leave(self, choice: Choice) -> None:
        choice.failover_stream.close()
        self._heartbeats.leave(choice.failover_stream)

    def close(self) -> None:
        """Cancels what is not finished, at the replicas too. Always to be called."""
        for pump in self._pumps:
            pump.cancel()
        for choice in self.choices:
            self._leave(choice)

    @property
    def usage(self) -> dict[str, int]:
        completion = sum(choice.produced for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }
