"""Self-scheduling: the target itself predicts how long its answers will be.

Ranking prompts (policies/scheduling/rank_prompts.py) run as internal requests through the same
rounds as users' requests. They contain users' text, which can affect nothing but the order in which
requests run.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from actors.coordinator.events import Arrived, Event, Left
from actors.coordinator.loop import Coordinator
from actors.coordinator.ranker_text import RankerText
from actors.hosts.protocol import VerifierHost
from engine.errors import SpindleError
from engine.sampling.params import SamplingParams
from policies.scheduling.rank_answers import Values, ranks_from_logits, read_lengths, read_ranks
from policies.scheduling.rank_prompts import FORMS
from policies.scheduling.rank_queue import RankBatch, RankQueue

TOKENS_PER_REQUEST = 12
"""Answer tokens for each ranked request: `[7]`, three digits, a comma, and one to spare."""
_PROMPTS_AT_ONCE = 4
_LABELS = "0123456789"


class RankConsumer(Protocol):
    """What uses ranks or lengths: the self-ranked schedule, or LengthPredictor below."""

    def due(self, now: float) -> RankBatch | None: ...

    def answer(self, batch: RankBatch, values: Sequence[float | None]) -> None: ...

    def forget(self, request: str) -> None: ...


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
    """Pass the coordinator's events to `observe`, and run `run` as a task."""

    def __init__(
        self,
        consumer: RankConsumer | None,
        verifier: VerifierHost,
        text: RankerText,
        timeout_s: float,
    ) -> None:
        self._consumer = consumer
        self._verifier = verifier
        self._text = text
        self._timeout_s = timeout_s
        self._labels = [text.encode(label)[0] for label in _LABELS]
        self._prompts: dict[str, tuple[int, ...]] = {}
        """The prompts of the users' requests that are being served."""
        self._wake = asyncio.Event()
        self._prompt_slots = asyncio.Semaphore(_PROMPTS_AT_ONCE)
        self.unplaced = 0
        """Requests for which an answer gave no value; they stay in the order of arrival."""
        self.requested = 0
        """Requests for which a value was requested."""

    def use(self, consumer: RankConsumer | None, timeout_s: float) -> None:
        """Replaces the consumer, also for all present requests; None: nothing is ranked."""
        self._consumer = consumer
        self._timeout_s = timeout_s
        for name in self._prompts:
            self._announce(name, asyncio.get_running_loop().time())

    def observe(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._prompts[event.view.name] = event.prompt
            self._announce(event.view.name, event.at_s)
        elif isinstance(event, Left) and not event.internal:
            self._prompts.pop(event.view.name, None)
            if self._consumer is not None:
                self._consumer.forget(event.view.name)

    async def run(self, coordinator: Coordinator) -> None:
        async with asyncio.TaskGroup() as ranking:
            while True:
                await self._wake.wait()
                self._wake.clear()
                now = asyncio.get_running_loop().time()
                while (consumer := self._consumer) and (batch := consumer.due(now)) is not None:
                    await self._prompt_slots.acquire()
                    ranking.create_task(self._rank(batch, consumer, coordinator))

    def _announce(self, name: str, now: float) -> None:
        if isinstance(self._consumer, LengthPredictor):
            self._consumer.arrive(name, now)
        if self._consumer is not None:
            self._wake.set()
            asyncio.get_running_loop().call_later(self._timeout_s, self._wake.set)

    async def _rank(
        self, batch: RankBatch, consumer: RankConsumer, coordinator: Coordinator
    ) -> None:
        try:
            # A request that has left meanwhile keeps its position, since the answer refers to
            # positions.
            prompts = [self._prompts.get(name, ()) for name in batch.requests]
            requests = self._text.requests_of(prompts)
            prompt = self._text.encode_chat(FORMS[batch.form](requests))
            values = await self._values(batch, prompt, coordinator)
        except SpindleError:
            values = [None] * len(batch.requests)
        finally:
            self._prompt_slots.release()
        self.requested += len(values)
        self.unplaced += values.count(None)
        consumer.answer(batch, values)

    async def _values(
        self, batch: RankBatch, prompt: Sequence[int], coordinator: Coordinator
    ) -> Values:
        size = len(batch.requests)
        if batch.form == "prefill_only":
            logits = await self._verifier.score(prompt, self._labels[:size])
            return ranks_from_logits(logits.tolist())
        params = SamplingParams(temperature=0, max_tokens=TOKENS_PER_REQUEST * size)
        tokens: list[int] = []
        cut = False
        async for commit in coordinator.submit(batch.name, prompt, params, internal=True):
            tokens += commit.token_ids
            cut = commit.finish == "length"
        read = read_lengths if batch.form == "length_only" else read_ranks
        return read(self._text.decode(tokens), size, cut)
