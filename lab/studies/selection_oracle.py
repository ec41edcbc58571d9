"""Selection by the true goodput, as the upper bound of the other policies."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from policies.protocols import RoundContext
from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.hedge import HOLD_SLOTS, goodput_after_switch, tokens_left
from policies.selection.lane_capacity import LaneCapacity
from policies.selection.membership import Membership

Goodput = Callable[[str, str | None], float]
"""Tokens per second of a request under a drafter; None: plain decoding."""


class OracleSelection:
    """The matching of requests and lanes with the largest sum of true goodputs."""

    def __init__(self, goodput: Goodput) -> None:
        self._true_goodput = goodput
        self._membership = Membership()
        self._mapping: dict[str, str | None] = {}
        self._slots = 0

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        changed = self._membership.changed(requests, lanes)
        if changed or self._slots >= HOLD_SLOTS * len(requests):
            self._slots = 0
            self._mapping = self._match(requests, lanes)
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        """The best lane, whether it has capacity left or not."""
        lanes = self._membership.lanes.values()
        if request not in self._mapping or not lanes:
            return None
        return max(lanes, key=lambda lane: self._true_goodput(request, lane.drafter)).name

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._slots += len(outcomes)

    def forget(self, request: str) -> None:
        self._membership.forget(request)
        self._mapping.pop(request, None)

    def _match(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView]
    ) -> dict[str, str | None]:
        values = np.array(
            [[self._value(request, lane) for lane in lanes] for request in requests], np.float64
        ).reshape(len(requests), len(lanes))
        plain = np.array([self._true_goodput(request.name, None) for request in requests])
        names = [request.name for request in requests]
        return LaneCapacity(lanes).match(names, values, plain, self._mapping)

    def _value(self, request: RequestView, lane: LaneView) -> float:
        moves = self._mapping.get(request.name) != lane.name
        return goodput_after_switch(
            self._true_goodput(request.name, lane.drafter),
            request.context * lane.catch_up_s if moves else 0.0,
            tokens_left(request),
        )
