"""Rounds in one process: prompts in, a stream of commits out, with any drafters.

The smallest loop that is complete: continuous batching in arrival order, prefill in chunks,
preemption when the KV pool is full.
"""

import operator
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from engine.committed import CommittedTokens
from engine.errors import InvalidRequest
from engine.params import SamplingParams, validate_params
from engine.protocol import (
    Commit,
    Draft,
    Drafter,
    DraftOrder,
    Finish,
    Missing,
    NoRoom,
    Prefix,
    Start,
    Verdict,
    Verifier,
    VerifyOrder,
)
from policies.tree import DraftTree


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Who drafts for a request in one round, and how far; no drafter means plain decoding."""

    drafter: str | None
    depth: int = 4
    width: int = 1


PLAIN = DraftPlan(drafter=None)
ChoosePlan = Callable[[str, int], DraftPlan]
"""(request, round) → plan: where selection and speculation policies decide."""


@dataclass(frozen=True, slots=True)
class Rejected:
    request: str
    error: InvalidRequest


_VERIFIER = ""
"""The verifier among a request's hosts; drafters have names, which are never empty."""


@dataclass(slots=True)
class _Request:
    name: str
    committed: CommittedTokens
    prompt_len: int
    params: SamplingParams
    seed: int
    round: int = 0
    known: dict[str, int] = field(default_factory=dict)
    """How many of the committed tokens each host has; absent or 0: it needs a start."""
    prefilled: bool = False
    """The verifier's KV holds everything but the last token, so a draft can be verified."""
    cramped: bool = False
    """The last order found no room in the KV pool: the next one goes without a draft."""

    @property
    def produced(self) -> int:
        return len(self.committed) - self.prompt_len

    def prefix_for(self, host: str) -> Prefix:
        base = self.known.get(host, 0)
        return Prefix(
            request=self.name,
            attempt=0,
            round=self.round,
            base=base,
            base_hash=self.committed.hash_at(base),
            delta=tuple(self.committed.ids[base:]),
            start=None if base else Start(self.params, self.seed, self.prompt_len),
        )


class Generation:
    """A session that requests join and leave at any round."""

    def __init__(
        self,
        verifier: Verifier,
        drafters: Sequence[Drafter] = (),
        choose_plan: ChoosePlan = lambda _request, _round: PLAIN,
        *,
        max_batch: int = 16,
        chunk: int = 512,
    ) -> None:
        self._verifier = verifier
        self._drafters = {drafter.name: drafter for drafter in drafters}
        self._choose_plan = choose_plan
        self._max_batch = max_batch
        self._chunk = chunk
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []  # in order of arrival
        self._full = False

    @property
    def active(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, name: str, prompt: Sequence[int], params: SamplingParams) -> None:
        """Admits a request, or raises InvalidRequest naming the field."""
        if any(request.name == name for request in (*self._waiting, *self._running)):
            raise InvalidRequest("request", f"{name!r} is already being served")
        validate_params(params, self._verifier.vocab_size)
        prompt = [
            operator.index(token) for token in prompt
        ]  # numpy's integers overflow in the hash
        _validate_prompt(prompt, params.max_tokens, self._verifier)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        if not params.ignore_eos:
            stops = {*params.stop_token_ids, *self._verifier.stop_token_ids}
            params = replace(params, stop_token_ids=tuple(sorted(stops)))
        committed = CommittedTokens()
        committed.extend(prompt)
        self._waiting.append(_Request(name, committed, len(prompt), params, seed))

    def cancel(self, name: str) -> None:
        """Unknown requests are no error: they may have just finished."""
        self._waiting = deque(request for request in self._waiting if request.name != name)
        self._leave([request for request in self._running if request.name == name])

    def step(self) -> list[Commit]:
        """One round: who runs, draft, verify, commit."""
        while self._waiting and not self._full and len(self._running) < self._max_batch:
            self._running.append(self._waiting.popleft())
        batch = list(self._running)
        trees = self._draft(batch)
        answers = self._verifier.verify(
            [
                VerifyOrder(request.prefix_for(_VERIFIER), tree, self._chunk)
                for request, tree in zip(batch, trees, strict=True)
            ]
        )
        commits = []
        for request, answer in zip(batch, answers, strict=True):
            request.round += 1
            request.cramped = isinstance(answer, NoRoom)
            if isinstance(answer, Missing):
                request.known[_VERIFIER] = answer.have
                request.prefilled = False
            elif isinstance(answer, Verdict):
                request.known[_VERIFIER] = len(request.committed) + len(answer.tokens)
                request.prefilled = not answer.pending
                if answer.tokens:
                    commits.append(_commit(request, answer))
        finished = {commit.request for commit in commits if commit.finish}
        self._leave([request for request in batch if request.name in finished])
        if any(request.cramped for request in self._running):
            self._preempt_youngest()
        return commits

    def _draft(self, batch: Sequence[_Request]) -> list[DraftTree]:
        """A tree for each request, the drafters' batches one after the other."""
        trees = [DraftTree.empty()] * len(batch)
        orders: dict[str, list[tuple[int, DraftOrder]]] = {}
        for index, request in enumerate(batch):
            plan = self._choose_plan(request.name, request.round)
            # The target's own token always comes on top, so one less is worth drafting.
            depth = min(plan.depth, request.params.max_tokens - request.produced - 1)
            if plan.drafter and request.prefilled and not request.cramped and depth > 0:
                order = DraftOrder(request.prefix_for(plan.drafter), depth, plan.width)
                orders.setdefault(plan.drafter, []).append((index, order))
        for drafter, lane in orders.items():
            answers = self._drafters[drafter].draft([order for _, order in lane])
            for (index, _), answer in zip(lane, answers, strict=True):
                request = batch[index]
                if isinstance(answer, Draft):
                    trees[index] = answer.tree
                    request.known[drafter] = len(request.committed)
                else:
                    request.known[drafter] = answer.have if isinstance(answer, Missing) else 0
        return trees

    def _leave(self, requests: Sequence[_Request]) -> None:
        names = {request.name for request in requests}
        self._running = [request for request in self._running if request.name not in names]
        self._full = self._full and not names
        self._verifier.forget(names)
        for drafter in self._drafters.values():
            drafter.forget(names)

    def _preempt_youngest(self) -> None:
        """Gives its KV back; it is computed again from the committed tokens later.

        The oldest is never preempted for a younger one, so every request gets its turn.
        """
        if len(self._running) > 1:
            youngest = self._running.pop()
            self._verifier.forget([youngest.name])
            youngest.known.pop(_VERIFIER, None)
            youngest.prefilled = youngest.cramped = False
            self._waiting.appendleft(youngest)
            self._full = True  # until someone leaves


def _commit(request: _Request, verdict: Verdict) -> Commit:
    """Takes the verdict's tokens up to the first that ends the output."""
    params, first = request.params, request.produced
    tokens = verdict.tokens[: params.max_tokens - first]
    stop = next((i for i, token in enumerate(tokens) if token in params.stop_token_ids), None)
    if stop is not None:
        tokens = tokens[: stop + 1]
    request.committed.extend(tokens)
    finish: Finish | None = None
    if stop is not None:
        finish = "stop"
    elif request.produced == params.max_tokens:
        finish = "length"
    return Commit(
        request=request.name,
        attempt=verdict.attempt,
        first_index=first,
        token_ids=tokens,
        logprobs=None if verdict.logprobs is None else verdict.logprobs[: len(tokens)],
        finish=finish,
    )


def _validate_prompt(prompt: Sequence[int], max_tokens: int, verifier: Verifier) -> None:
    if not prompt:
        raise InvalidRequest("prompt", "is empty; it needs at least one token")
    for index, token in enumerate(prompt):
        if not 0 <= token < verifier.vocab_size:
            raise InvalidRequest(
                "prompt",
                f"token {token} at index {index} is outside the vocabulary of "
                f"{verifier.vocab_size}",
            )
    room = verifier.max_context - len(prompt)
    if room < 1:
        raise InvalidRequest(
            "prompt",
            f"{len(prompt)} tokens leave no room for output in the {verifier.max_context} that "
            "a request may have here; shorten it",
        )
    if max_tokens > room:
        raise InvalidRequest(
            "max_tokens",
            f"{max_tokens} tokens behind a prompt of {len(prompt)} exceed the "
            f"{verifier.max_context} that a request may have here; ask for at most {room}",
        )


def generate(
    verifier: Verifier,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    *,
    drafter: Drafter | None = None,
    depth: int = 4,
    width: int = 1,
    max_batch: int = 16,
    chunk: int = 512,
) -> Iterator[Commit | Rejected]:
    """Streams the commits of all prompts; request names are the prompts' indices."""
    plan = DraftPlan(drafter.name, depth, width) if drafter else PLAIN
    session = Generation(
        verifier,
        [drafter] if drafter else [],
        lambda _request, _round: plan,
        max_batch=max_batch,
        chunk=chunk,
    )
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    for index, (prompt, wanted) in enumerate(zip(prompts, each, strict=True)):
        try:
            session.add(str(index), prompt, wanted)
        except InvalidRequest as error:
            yield Rejected(str(index), error)
    while session.active:
        yield from session.step()
