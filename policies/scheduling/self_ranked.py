"""Self-scheduling's Algorithm 1: requests run in the order in which the target itself ranks them.

A step of the algorithm is one forward of the target, after which the coordinator calls `observe`;
`pick` is called more often, as requests arrive and lanes finish. Which requests ran is taken from
`running` at the next pick, so that the counts are right even if a wrapper or a full KV cache
changed the pick.

A batch becomes a prompt (policies/scheduling/rank_prompts.py), which runs as an internal request
before all users' requests: the paper's rank -∞.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from policies.ranges import SECONDS, require
from policies.request import RequestView, RoundOutcome, by_arrival
from policies.scheduling.rank_answers import competition_ranks
from policies.scheduling.rank_prompts import MAX_BATCH

Form = Literal["prefill_only", "rank_only", "length_only"]
"""The prompts of policies/scheduling/rank_prompts.py."""

_NAME = "spindle:rank/"


@dataclass(frozen=True, slots=True)
class RankBatch:
    name: str
    """The name of the internal request."""
    requests: tuple[str, ...]
    """By position in the prompt, in the order of arrival."""
    form: Form


class RankQueue:
    """Requests that wait to be ranked; they run meanwhile."""

    def __init__(self, form: Form, batch: int = MAX_BATCH, timeout_s: float = 0.5) -> None:
        if not 1 <= batch <= MAX_BATCH:
            raise ValueError(f"a ranking prompt takes 1 to {MAX_BATCH} requests, not {batch}")
        require(SECONDS, timeout_s=timeout_s)
        self._form: Form = form
        self._batch = batch
        self._timeout_s = timeout_s
        self._waiting: dict[str, float] = {}
        self._batches = 0

    def arrive(self, request: str, now: float) -> None:
        self._waiting[request] = now

    def forget(self, request: str) -> None:
        self._waiting.pop(request, None)

    def due(self, now: float) -> RankBatch | None:
        """A full batch, or all requests once the oldest has waited for the timeout. To be called
        until it returns None, as a burst of requests fills several batches."""
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting.values()))
        # The same sum as that of a timer set on arrival, so that both agree to the last bit.
        if len(self._waiting) < self._batch and now < oldest + self._timeout_s:
            return None
        requests = tuple(self._waiting)[: self._batch]
        for request in requests:
            del self._waiting[request]
        self._batches += 1
        return RankBatch(f"{_NAME}{self._batches}", requests, self._form)


@dataclass(frozen=True, slots=True)
class SelfRankedParams:
    form: Form = "length_only"
    """The prompt; the default is the paper's best."""
    batch: int = MAX_BATCH
    """B: the requests ranked in one prompt."""
    timeout_s: float = 0.5
    """T, for which the paper gives no value: the longest wait of a request to be ranked. It runs
    meanwhile."""
    starvation_steps: int = 4
    """Steps without running after which a request is promoted."""
    quantum_steps: int = 32
    """Steps that a promoted request may run before it returns to its rank."""
    max_promotions: int = 16
    """The most promotions in one step."""

    def __post_init__(self) -> None:
        if min(self.starvation_steps, self.quantum_steps, self.max_promotions) < 1:
            raise ValueError("starvation_steps, quantum_steps and max_promotions start at 1")


@dataclass(slots=True)
class _RankState:
    rank: float = math.inf
    """Infinite until the request is ranked, so that it comes after all ranked ones."""
    starved: int = 0
    """Steps since it last ran."""
    quantum: int = 0
    """Steps left of its promotion; 0: not promoted."""
    seen: bool = False
    """Whether the request was in the system at the last pick."""


class SelfRanked:
    def __init__(self, params: SelfRankedParams = SelfRankedParams()) -> None:
        self._params = params
        self._queue = RankQueue(params.form, params.batch, params.timeout_s)
        self._states: dict[str, _RankState] = {}
        self._steps = 0
        """Forwards since the last pick."""
        self.timeout_s = params.timeout_s

    def arrive(self, request: RequestView, now: float) -> None:
        """Lines 3-5."""
        self._states[request.name] = _RankState()
        self._queue.arrive(request.name, now)

    def due(self, now: float) -> RankBatch | None:
        """Lines 6-8: the next batch to rank. To be called until it returns None."""
        while (batch := self._queue.due(now)) is not None:
            if len(batch.requests) > 1:
                return batch
            self._states[batch.requests[0]].rank = 1.0  # a batch of one needs no prompt
        return None

    def answer(self, batch: RankBatch, values: Sequence[float | None]) -> None:
        """Lines 15-18, with the values that policies.scheduling.rank_answers parsed for the batch.
        Ranks of different batches are compared as they are.

        Requests without a value get the median rank, and arrival decides among them; if no request
        has a value, all stay unranked, in the order of arrival.
        """
        ranks = competition_ranks(values)
        placed = [rank for rank in ranks if rank is not None]
        middle = median(placed) if placed else math.inf
        for request, rank in zip(batch.requests, ranks, strict=True):
            if request in self._states:
                self._states[request].rank = middle if rank is None else rank

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        self._count_steps(requests, set(running))
        self._promote(requests)
        order = sorted(requests, key=self._preference)
        return [view.name for view in order[:slots]]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        """Called once for each forward, though all its requests may still read their prompts."""
        self._steps += 1

    def forget(self, request: str) -> None:
        self._states.pop(request, None)
        self._queue.forget(request)

    def _count_steps(self, requests: Sequence[RequestView], ran: set[str]) -> None:
        """Lines 14 and 19-25, for the steps since the last pick."""
        steps, self._steps = self._steps, 0
        for view in requests:
            state = self._states[view.name]
            if steps and view.name in ran:
                state.starved = 0
                state.quantum = max(0, state.quantum - steps)
            elif state.seen:
                state.starved += steps
            state.seen = True

    def _promote(self, requests: Sequence[RequestView]) -> None:
        """Lines 10-11; the most starved first if there are more than `max_promotions`."""
        starving = [
            view
            for view in requests
            if self._states[view.name].starved >= self._params.starvation_steps
            and not self._states[view.name].quantum
        ]
        starving.sort(key=lambda view: (-self._states[view.name].starved, *by_arrival(view)))
        for view in starving[: self._params.max_promotions]:
            self._states[view.name].quantum = self._params.quantum_steps

    def _preference(self, view: RequestView) -> tuple[bool, float, float, str]:
        """Line 12: promoted requests first, then by rank."""
        state = self._states[view.name]
        return (not state.quantum, state.rank, *by_arrival(view))
