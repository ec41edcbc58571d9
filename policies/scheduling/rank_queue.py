"""Self-scheduling's batching (Algorithm 1, lines 3-8): which requests to rank together, and when.

A batch becomes a prompt (policies/scheduling/rank_prompts.py), which runs as an internal request
before all users' requests: the paper's rank -∞. Predicted lengths for other schedules (LP-SJF,
LAPS-SD, the default) are requested in the same way.
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
    """Of the internal request."""
    requests: tuple[str, ...]
    """By position in the prompt, in the order of arrival."""
    form: Form


class RankQueue:
    """Requests that wait to be ranked; they run meanwhile."""

    def __init__(self, form: Form, batch: int = MAX_BATCH, timeout_s: float = 0.5) -> None:
        if not 1 <= batch <= MAX_BATCH:
            raise ValueError(f"a ranking prompt takes 1 to {MAX_BATCH} requests, not {batch}")
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
