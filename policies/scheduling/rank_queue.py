"""Self-scheduling's batching (Algorithm 1, lines 3-8): which requests to rank together, and when.

A batch is turned into a prompt (policies/scheduling/rank_prompts.py) and runs as an internal
request, before every user's: the paper's rank -∞. Whoever wants predicted lengths from the model
(LP-SJF, LAPS-SD, the default schedule) asks in the same way.
"""

from dataclasses import dataclass
from typing import Literal

from policies.scheduling.rank_prompts import MAX_BATCH

Form = Literal["prefill_only", "rank_only", "length_only"]
"""The prompts of policies/scheduling/rank_prompts.py."""

_NAME = "spindle:rank/"


@dataclass(frozen=True, slots=True)
class RankBatch:
    name: str
    """Of the internal request that asks about it."""
    requests: tuple[str, ...]
    """By position in the prompt; in the order of arrival."""
    form: Form


class RankQueue:
    """Requests that wait to be asked about. They run meanwhile."""

    def __init__(self, form: Form, batch: int = MAX_BATCH, timeout_s: float = 0.5) -> None:
        if not 1 <= batch <= MAX_BATCH:
            raise ValueError(f"a ranking prompt takes 1 to {MAX_BATCH} requests, not {batch}")
        self._form: Form = form
        self._batch = batch
        self._timeout_s = timeout_s
        self._waiting: dict[str, float] = {}
        self._asked = 0

    def arrive(self, request: str, now: float) -> None:
        self._waiting[request] = now

    def forget(self, request: str) -> None:
        self._waiting.pop(request, None)

    def due(self, now: float) -> RankBatch | None:
        """A full batch, or what there is once the oldest has waited for the timeout. To be
        called until it returns None: a burst fills several batches."""
        if not self._waiting:
            return None
        oldest = next(iter(self._waiting.values()))
        # As a timer that was set on arrival reckons, to the last bit.
        if len(self._waiting) < self._batch and now < oldest + self._timeout_s:
            return None
        requests = tuple(self._waiting)[: self._batch]
        for request in requests:
            del self._waiting[request]
        self._asked += 1
        return RankBatch(f"{_NAME}{self._asked}", requests, self._form)
