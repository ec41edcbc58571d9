"""Self-scheduling for real: the target itself is asked how long its answers will be.

Ranking prompts (policies/scheduling/rank_prompts.py) run as internal requests through the same
rounds as everyone's. Users' text in them can only affect an order.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from actors.coordinator.events import Arrived, Event, Left
from actors.coordinator.loop import Coordinator
from actors.hosts.protocol import VerifierHost
from engine.errors import SpindleError
from engine.sampling.params import SamplingParams
from policies.scheduling.rank_answers import Values, ranks_from_logits, read_lengths, read_ranks
from policies.scheduling.rank_prompts import FORMS, Message
from policies.scheduling.rank_queue import RankBatch, RankQueue

_TOKENS_PER_REQUEST = 12
"""Of an answer: `[7]` and three digits, a comma, and one to spare."""
_ASKED_AT_ONCE = 4
_LABELS = "0123456789"


class Ranked(Protocol):
    """Who wants to know: the self-ranked schedule, or LengthPredictor below."""

    def due(self, now: float) -> RankBatch | None: ...

    def answer(self, batch: RankBatch, values: Sequence[float | None]) -> None: ...

    def forget(self, request: str) -> None: ...


class Text(Protocol):
    """The target's tokenizer, as far as it is needed here."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """Without special tokens."""
        ...


class LengthPredictor:
    """Predicted output lengths for the schedules that use them."""

    def __init__(self, queue: RankQueue, predict: Callable[[str, float], None]) -> None:
        self._queue = queue
        self._predict = predict
        self.due = queue.due
        self.forget = queue.forget
        self.arrive = queue.arrive

    def answer(self, batch: RankBatch, values: Sequence[float | None]) -> None:
        for request, value in zip(batch.requests, values, strict=True):
            if value is not None:
                self._predict(request, value)


class Ranker:
    """Give its `observe` to the coordinator's events, then `run` it."""

    def __init__(
        self, ranked: Ranked | None, verifier: VerifierHost, text: Text, timeout_s: float
    ) -> None:
        self._ranked = ranked
        self._verifier = verifier
        self._text = text
        self._timeout_s = timeout_s
        self._labels = [text.encode(label)[0] for label in _LABELS]
        self._prompts: dict[str, tuple[int, ...]] = {}
        """Of the requests that are being served."""
        self._wake = asyncio.Event()
        self._tickets = asyncio.Semaphore(_ASKED_AT_ONCE)
        self.unplaced = 0
        """Requests that an answer did not place; they stay in the order of arrival."""
        self.asked = 0

    def use(self, ranked: Ranked | None, timeout_s: float) -> None:
        """Another one wants to know, or nobody does, about all requests that are there."""
        self._ranked = ranked
        self._timeout_s = timeout_s
        for name in self._prompts:
            self._tell_of(name, asyncio.get_running_loop().time())

    def observe(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._prompts[event.view.name] = event.prompt
            self._tell_of(event.view.name, event.at_s)
        elif isinstance(event, Left) and not event.internal:
            self._prompts.pop(event.view.name, None)
            if self._ranked is not None:
                self._ranked.forget(event.view.name)

    async def run(self, coordinator: Coordinator) -> None:
        async with asyncio.TaskGroup() as asking:
            while True:
                await self._wake.wait()
                self._wake.clear()
                now = asyncio.get_running_loop().time()
                while (ranked := self._ranked) and (batch := ranked.due(now)) is not None:
                    await self._tickets.acquire()
                    asking.create_task(self._ask(batch, ranked, coordinator))

    def _tell_of(self, name: str, now: float) -> None:
        if isinstance(self._ranked, LengthPredictor):
            self._ranked.arrive(name, now)
        if self._ranked is not None:
            self._wake.set()
            asyncio.get_running_loop().call_later(self._timeout_s, self._wake.set)

    async def _ask(self, batch: RankBatch, ranked: Ranked, coordinator: Coordinator) -> None:
        try:
            # Who has left meanwhile keeps its position: the answer counts by them.
            requests = [self._text.decode(self._prompts.get(name, ())) for name in batch.requests]
            prompt = self._text.encode_chat(FORMS[batch.form](requests))
            values = await self._values(batch, prompt, coordinator)
        except SpindleError:
            values = [None] * len(batch.requests)
        finally:
            self._tickets.release()
        self.asked += len(values)
        self.unplaced += values.count(None)
        ranked.answer(batch, values)

    async def _values(
        self, batch: RankBatch, prompt: Sequence[int], coordinator: Coordinator
    ) -> Values:
        size = len(batch.requests)
        if batch.form == "prefill_only":
            logits = await self._verifier.score(prompt, self._labels[:size])
            return ranks_from_logits(logits.tolist())
        params = SamplingParams(temperature=0, max_tokens=_TOKENS_PER_REQUEST * size)
        tokens: list[int] = []
        cut = False
        async for commit in coordinator.submit(batch.name, prompt, params, internal=True):
            tokens += commit.token_ids
            cut = commit.finish == "length"
        read = read_lengths if batch.form == "length_only" else read_ranks
        return read(self._text.decode(tokens), size, cut)
