"""Self-scheduling's Algorithm 1: the target ranks its own requests, the order follows.

A step of the algorithm is one call of `pick`. What ran in a step is read from `running` at the
next one, so that the counts stay true when a wrapper or a full KV cache ran something else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from policies.request import RequestView, RoundOutcome
from policies.scheduling.expected_length import by_arrival
from policies.scheduling.rank_answers import competition_ranks
from policies.scheduling.rank_prompts import MAX_BATCH
from policies.scheduling.rank_queue import Form, RankBatch, RankQueue


@dataclass(frozen=True, slots=True)
class SelfRankedParams:
    form: Form = "length_only"
    """Which prompt asks; the paper's best."""
    rank: Literal["batch", "length"] = "batch"
    """`batch` (the paper's): rank 1, 2, ... inside each batch, compared across batches as they
    are. `length`: the predicted tokens themselves, of `length_only`."""
    batch: int = MAX_BATCH
    """B."""
    timeout_s: float = 0.5
    """T, ours: a request waits for this long at most to be asked about. It runs meanwhile."""
    starvation_steps: int = 4
    """Steps without running, behind which a request is promoted."""
    quantum_steps: int = 32
    """Steps that a promoted request may run before it falls back to its rank."""
    max_promotions: int = 16
    """At most so many promotions in one step."""

    def __post_init__(self) -> None:
        if self.rank == "length" and self.form != "length_only":
            raise ValueError(f"rank: length needs form: length_only, not {self.form}")
        if min(self.starvation_steps, self.quantum_steps, self.max_promotions) < 1:
            raise ValueError("starvation_steps, quantum_steps and max_promotions start at 1")


@dataclass(slots=True)
class _Standing:
    rank: float = math.inf
    """Until ranked, behind those that are."""
    starved: int = 0
    """Steps since it last ran."""
    quantum: int = 0
    """Steps left of its promotion; 0: not promoted."""
    seen: bool = False
    """It was there in the step that has just ended."""


class SelfRanked:
    def __init__(self, params: SelfRankedParams = SelfRankedParams()) -> None:
        self._params = params
        self._queue = RankQueue(params.form, params.batch, params.timeout_s)
        self._standing: dict[str, _Standing] = {}

    def arrive(self, request: RequestView, now: float) -> None:
        """Lines 3-5."""
        self._standing[request.name] = _Standing()
        self._queue.arrive(request.name, now)

    def due(self, now: float) -> RankBatch | None:
        """Lines 6-8: the batch to ask about now. To be called until it returns None."""
        while (batch := self._queue.due(now)) is not None:
            if len(batch.requests) == 1 and self._params.rank == "batch":
                self._standing[batch.requests[0]].rank = 1.0  # nothing to compare it with
                continue
            return batch
        return None

    def answer(self, batch: RankBatch, values: Sequence[float | None]) -> None:
        """Lines 15-18, with policies.scheduling.rank_answers' values of the batch's requests.

        Those that the answer did not place stand in its middle, where arrival decides among
        equals; where it placed none, all stay unranked, in the order of arrival.
        """
        ranks = competition_ranks(values) if self._params.rank == "batch" else list(values)
        placed = [rank for rank in ranks if rank is not None]
        middle = median(placed) if placed else math.inf
        for request, rank in zip(batch.requests, ranks, strict=True):
            if request in self._standing:
                self._standing[request].rank = middle if rank is None else rank

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        self._end_step(requests, set(running))
        self._promote(requests)
        order = sorted(requests, key=self._preference)
        return [view.name for view in order[:slots]]

    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        pass

    def forget(self, request: str) -> None:
        self._standing.pop(request, None)
        self._queue.forget(request)

    def _end_step(self, requests: Sequence[RequestView], ran: set[str]) -> None:
        """Lines 14 and 19-25, for the step that has just ended."""
        for view in requests:
            standing = self._standing[view.name]
            if view.name in ran:
                standing.starved = 0
                standing.quantum = max(0, standing.quantum - 1)
            elif standing.seen:
                standing.starved += 1
            standing.seen = True

    def _promote(self, requests: Sequence[RequestView]) -> None:
        """Lines 10-11; the most starved first where there are too many."""
        starving = [
            view
            for view in requests
            if self._standing[view.name].starved >= self._params.starvation_steps
            and not self._standing[view.name].quantum
        ]
        starving.sort(key=lambda view: (-self._standing[view.name].starved, *by_arrival(view)))
        for view in starving[: self._params.max_promotions]:
            self._standing[view.name].quantum = self._params.quantum_steps

    def _preference(self, view: RequestView) -> tuple[bool, float, float, str]:
        """Line 12."""
        standing = self._standing[view.name]
        return (not standing.quantum, standing.rank, *by_arrival(view))
