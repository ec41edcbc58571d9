"""One fixed drafter for all requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.protocols import RoundContext
from policies.request import LaneView, RequestView, RoundOutcome
from policies.selection.lane_capacity import LaneCapacity
from policies.selection.membership import Membership


@dataclass(frozen=True, slots=True)
class FixedParams:
    drafter: str | None = None
    """The drafter of every request; None: that of the first lane."""


class Fixed:
    """One drafter for all requests, spread evenly over its lanes. Requests beyond its capacity
    decode plainly until a place becomes free."""

    def __init__(self, params: FixedParams = FixedParams()) -> None:
        self._drafter = params.drafter
        self._membership = Membership()
        self._mapping: dict[str, str | None] = {}

    def assign(
        self,
        requests: Sequence[RequestView],
        lanes: Sequence[LaneView],
        context: RoundContext,
        now: float,
    ) -> Mapping[str, str | None]:
        if self._membership.changed(requests, lanes):
            self._mapping = self._assign_all(requests, lanes)
        return self._mapping

    def likely_next(self, request: str) -> str | None:
        return self._mapping.get(request)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def forget(self, request: str) -> None:
        self._membership.forget(request)
        self._mapping.pop(request, None)

    def _assign_all(
        self, requests: Sequence[RequestView], lanes: Sequence[LaneView]
    ) -> dict[str, str | None]:
        capacity = LaneCapacity(lanes)
        drafter = self._drafter or (lanes[0].drafter if lanes else "")
        mapping: dict[str, str | None] = {}
        for request in requests:
            lane = self._mapping.get(request.name)
            mapping[request.name] = lane if lane and capacity.take(lane) else None
        for name, lane in mapping.items():
            if lane is None:
                free = capacity.emptiest(drafter)
                mapping[name] = free if free and capacity.take(free) else None
        return mapping
