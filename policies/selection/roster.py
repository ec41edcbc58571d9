"""Who is here. Every selection keeps its mapping until somebody comes, goes, or is due."""

from collections.abc import Sequence

from policies.request import LaneView, RequestView, RoundOutcome


class Roster:
    """The requests and lanes of the last look."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestView] = {}
        self.lanes: dict[str, LaneView] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._joined: set[str] = set()

    def changed(self, requests: Sequence[RequestView], lanes: Sequence[LaneView]) -> bool:
        """Takes both lists; whether they differ in what a mapping depends on. Their order, and
        the costs of lanes, which are refined all the time, do not count."""
        here = {request.name: request for request in requests}
        places = {lane.name: (lane.drafter, lane.capacity) for lane in lanes}
        changed = here.keys() != self.requests.keys() or places != self._places
        if changed:
            self._joined = (self._joined | (here.keys() - self.requests.keys())) & here.keys()
        self.requests, self._places = here, places
        self.lanes = {lane.name: lane for lane in lanes}
        return changed

    def drafter(self, outcome: RoundOutcome) -> str | None:
        """Who drafted; None: nobody did, or the lane has left since."""
        lane = self._lane(outcome)
        return lane.drafter if lane else None

    def slot_seconds(self, outcome: RoundOutcome) -> float | None:
        """Slot time without re-computation after a switch, which is a cost of its own in eq. 6.
        None for a request's first slot here: that holds its prefill, or the time that it was
        preempted for, which is no lane's doing. Asked once for each outcome."""
        if outcome.request in self._joined:
            self._joined.remove(outcome.request)
            return None
        lane = self._lane(outcome)
        if lane is None:
            return outcome.seconds
        return outcome.seconds - min(outcome.draft_s, outcome.caught_up * lane.catch_up_s)

    def _lane(self, outcome: RoundOutcome) -> LaneView | None:
        return self.lanes.get(outcome.lane) if outcome.lane is not None else None
