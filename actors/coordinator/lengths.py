"""How long outputs will be: as the target itself ranks them, or as finished requests show.

Ranking prompts (policies/scheduling/rank_prompts.py) run as internal requests through the same
rounds as users' requests. They contain users' text, which can affect nothing but the order in which
requests run.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from actors.coordinator.events import Arrived, Event, Left, Verified
from actors.coordinator.loop import Coordinator
from actors.hosts.protocol import VerifierHost
from engine.sampling.params import SamplingParams
from engine.tokenizer import load_tokenizer
from policies.estimates.output_lengths import LearnedLengths
from policies.request import RequestView
from policies.scheduling.rank_answers import Values, ranks_from_logits, read_lengths, read_ranks
from policies.scheduling.rank_prompts import FORMS, Message
from policies.scheduling.self_ranked import RankBatch, SelfRanked

_LOG = logging.getLogger("spindle")
TOKENS_PER_REQUEST = 12
"""Answer tokens for each ranked request: `[7]`, three digits, a comma, and one to spare."""
_PROMPTS_AT_ONCE = 4
_LABELS = "0123456789"
_MESSAGE = "[the only message of a user]"


class RankerText:
    """The target's tokenizer, for ranking prompts."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    @cached_property
    def _tokenizer(self) -> Any:
        """Loaded at first use, which takes a second: few configs have any."""
        return load_tokenizer(self._checkpoint)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        encoded = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=True
        )
        return list(encoded["input_ids"])

    def requests_of(self, prompts: Iterable[Sequence[int]]) -> list[str]:
        """The prompts' texts without what the chat template writes around a user's only message: of
        many models that is a system prompt, the same in all requests."""
        # Rendered each time: some templates have today's date.
        framed = self.decode(self.encode_chat([{"role": "user", "content": _MESSAGE}]))
        before, _, after = framed.partition(_MESSAGE)
        return [self.decode(one).removeprefix(before).removesuffix(after) for one in prompts]

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


class Ranker:
    """Pass the coordinator's events to `observe`, and run `run` as a task."""

    def __init__(
        self,
        schedule: SelfRanked | None,
        verifier: VerifierHost,
        text: RankerText,
    ) -> None:
        self._schedule = schedule
        self._verifier = verifier
        self._text = text
        self._labels = [text.encode(label)[0] for label in _LABELS]
        self._prompts: dict[str, tuple[int, ...]] = {}
        """The prompts of the users' requests that are being served."""
        self._wake = asyncio.Event()
        self._prompt_slots = asyncio.Semaphore(_PROMPTS_AT_ONCE)
        self.unplaced = 0
        """Requests for which an answer gave no value; they stay in the order of arrival."""
        self.requested = 0
        """Requests for which a value was requested."""

    def use(self, schedule: SelfRanked | None) -> None:
        """Ranks for this schedule, which has been passed all present requests; None: nothing is
        ranked."""
        self._schedule = schedule
        self._announce()

    def observe(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._prompts[event.view.name] = event.prompt
            self._announce()
        elif isinstance(event, Left) and not event.internal:
            self._prompts.pop(event.view.name, None)

    async def run(self, coordinator: Coordinator) -> None:
        async with asyncio.TaskGroup() as ranking:
            while True:
                await self._wake.wait()
                self._wake.clear()
                now = asyncio.get_running_loop().time()
                while (schedule := self._schedule) and (batch := schedule.due(now)) is not None:
                    await self._prompt_slots.acquire()
                    ranking.create_task(self._rank(batch, schedule, coordinator))

    def _announce(self) -> None:
        if self._schedule is not None:
            self._wake.set()
            asyncio.get_running_loop().call_later(self._schedule.timeout_s, self._wake.set)

    async def _rank(self, batch: RankBatch, schedule: SelfRanked, coordinator: Coordinator) -> None:
        try:
            # A request that has left meanwhile keeps its position, since the answer refers to
            # positions.
            prompts = [self._prompts.get(name, ()) for name in batch.requests]
            requests = self._text.requests_of(prompts)
            prompt = self._text.encode_chat(FORMS[batch.form](requests))
            values = await self._values(batch, prompt, coordinator)
        except Exception as error:  # also of a chat template that takes no system message
            _LOG.warning("requests are not ranked: %r", error)
            values = [None] * len(batch.requests)
        finally:
            self._prompt_slots.release()
        self.requested += len(values)
        self.unplaced += values.count(None)
        schedule.answer(batch, values)

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


_FIRST_REVISION = 16
"""Output tokens after which a prediction is made again, with those that became longer; then after
twice as many, and again."""


class LengthLearner:
    """Pass the coordinator's events to `observe`."""

    def __init__(self, lengths: LearnedLengths, predict: Callable[[str, float], None]) -> None:
        self._predicts = True
        self._lengths = lengths
        self._predict = predict
        self._served: dict[str, RequestView] = {}
        self._revise_at: dict[str, int] = {}

    def use(self, predicts: bool) -> None:
        """Whether predictions are made, for all present requests as well. Lengths are learned
        always, so that a schedule which is set later has them at once."""
        self._predicts = predicts
        for view in self._served.values():
            self._make(view)

    def observe(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._served[event.view.name] = event.view
            self._revise_at[event.view.name] = _FIRST_REVISION
            self._make(event.view)
        elif isinstance(event, Verified):
            for outcome in event.outcomes:
                view = self._served.get(outcome.request)
                if view is not None and view.generated >= self._revise_at[view.name]:
                    self._revise_at[view.name] = 2 * view.generated
                    self._make(view)
        elif isinstance(event, Left) and not event.internal:
            self._served.pop(event.view.name, None)
            self._revise_at.pop(event.view.name, None)
            # What was cancelled or failed would have become longer.
            if event.finish is not None:
                self._lengths.finished(event.view)

    def _make(self, view: RequestView) -> None:
        predicted = self._lengths.predict(view) if self._predicts else None
        if predicted is not None:
            self._predict(view.name, predicted)
