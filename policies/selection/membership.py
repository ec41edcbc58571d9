"""Who is here. Every selection keeps its mapping until somebody comes, goes, or is due."""

from collections.abc import Sequence
from operator import is_

from policies.request import LaneView, RequestView, RoundOutcome


class Membership:
    """The requests and lanes of the last look."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestView] = {}
        self.lanes: dict[str, LaneView] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._joined: set[str] = set()
        self._seen: Sequence[RequestView] = ()

    def changed(self, requests: Sequence[RequestView], lanes: Sequence[LaneView]) -> bool:
        """Takes both lists; whether they differ in what a mapping depends on. Their order, and
        the costs of lanes, which are refined all the time, do not count."""
        places = {lane.name: (lane.drafter, lane.capacity) for lane in lanes}
        changed = places != self._places
        self._places = places
        self.lanes = {lane.name: lane for lane in lanes}
        # In most rounds they are the very same, which is seen without looking into any.
        if changed or len(requests) != len(self._seen) or not all(map(is_, requests, self._seen)):
            here = {request.name: request for request in requests}
            changed = changed or here.keys() != self.requests.keys()
            if changed:
                self._joined = (self._joined | (here.keys() - self.requests.keys())) & here.keys()
            self.requests, self._seen = here, tuple(requests)
        return changed

    def slot(self, outcome: RoundOutcome) -> tuple[str | None, float | None]:
        """Who drafted; None: nobody did, or the lane has left since. And slot time without
        re-computation after a switch, which is a cost of its own in eq. 6; None for a request's
        first slot here: that holds its prefill, or the time that it was preempted for, which is
        no lane's doing. Asked once for each outcome."""
        lane = None if outcome.lane is None else self.lanes.get(outcome.lane)
        drafter = None if lane is None else lane.drafter
        if self._joined and outcome.request in self._joined:
            self._joined.remove(outcome.request)
            return drafter, None
        if lane is None or not outcome.caught_up:
            return drafter, outcome.seconds
        reading_s = min(outcome.draft_s, outcome.caught_up * lane.catch_up_s)
        return drafter, outcome.seconds - reading_s
