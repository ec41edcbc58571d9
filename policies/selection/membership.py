"""The present requests and lanes. A selection keeps its mapping until either changes or a decision
of its own has run out."""

from collections.abc import Sequence
from operator import is_

from policies.request import LaneView, RequestView, RoundOutcome


class Membership:
    def __init__(self) -> None:
        self.requests: dict[str, RequestView] = {}
        self.lanes: dict[str, LaneView] = {}
        self._places: dict[str, tuple[str, int]] = {}
        """Drafter and capacity of each lane."""
        self._joined: set[str] = set()
        """Requests whose first slot since they joined has not ended."""
        self._last_requests: Sequence[RequestView] = ()
        self._left = False
        """Whether a request has left since the last mapping."""

    def changed(self, requests: Sequence[RequestView], lanes: Sequence[LaneView]) -> bool:
        """Updates both lists and returns whether a mapping must be made again: requests or lanes
        have come or gone, or a lane has another drafter or capacity. Their order does not count,
        nor do the costs of lanes, which are refined all the time."""
        places = {lane.name: (lane.drafter, lane.capacity) for lane in lanes}
        changed = self._left or places != self._places
        self._left, self._places = False, places
        self.lanes = {lane.name: lane for lane in lanes}
        last = self._last_requests
        # In most rounds they are the same objects, which is the fastest to check.
        if changed or len(requests) != len(last) or not all(map(is_, requests, last)):
            here = {request.name: request for request in requests}
            changed = changed or here.keys() != self.requests.keys()
            if changed:
                self._joined = (self._joined | (here.keys() - self.requests.keys())) & here.keys()
            self.requests, self._last_requests = here, tuple(requests)
        return changed

    def forget(self, request: str) -> None:
        """It has left, even if another one comes under its name before the next mapping."""
        self._left |= self.requests.pop(request, None) is not None

    def slot(self, outcome: RoundOutcome) -> tuple[str | None, float | None]:
        """The drafter and the slot time of an outcome; to be called once for each outcome.

        The drafter is None if no lane drafted or the lane has left. Slot time excludes
        re-computation after a switch, which eq. 6 of Spin charges separately. It is None for a
        request's first slot since it joined, because that includes prefill or a preemption.
        """
        lane = None if outcome.lane is None else self.lanes.get(outcome.lane)
        drafter = None if lane is None else lane.drafter
        if self._joined and outcome.request in self._joined:
            self._joined.remove(outcome.request)
            return drafter, None
        if lane is None or not outcome.caught_up:
            return drafter, outcome.seconds
        catch_up_s = min(outcome.draft_s, outcome.caught_up * lane.catch_up_s)
        return drafter, outcome.seconds - catch_up_s
