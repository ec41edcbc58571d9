"""A schedule of static batches: what it picks runs until the last of it has ended."""

from collections.abc import Sequence

from policies.protocols import Schedule
from policies.request import RequestView


class StaticBatches:
    def __init__(self, inner: Schedule, batches: list[list[str]]) -> None:
        """`inner` orders the waiting requests; `batches` gets the names of each batch."""
        self._inner = inner
        self._batches = batches
        self.arrive = inner.arrive
        self.observe = inner.observe
        self.forget = inner.forget

    def pick(
        self, requests: Sequence[RequestView], running: Sequence[str], slots: int, now: float
    ) -> list[str]:
        here = {view.name for view in requests}
        batch = self._batches[-1] if self._batches else []
        unfinished = [name for name in batch if name in here]
        if unfinished:
            return unfinished
        picked = self._inner.pick(requests, running, slots, now)
        if picked:
            self._batches.append(picked)
        return picked
