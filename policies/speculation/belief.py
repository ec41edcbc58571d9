"""How likely a draft's next level is accepted before it is drafted: per request, pooled by lane.

Evidence is calibrated confidence, not acceptance: drafted levels that were never verified teach
as well, and there is less noise in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_FADE = 0.9
"""Per round of a request: early rounds tell the domain, later ones what it is at now."""
_LANE_MEMORY = 512.0
"""Levels over which a lane's mean is taken."""


@dataclass(slots=True)
class _Evidence:
    lane: str
    survived: float = 0.0
    """Expected levels that were accepted."""
    reached: float = 0.0
    """Expected levels whose parent was."""


class Beliefs:
    def __init__(self, prior: float, weight: float) -> None:
        """`prior`: acceptance of an unknown lane; `weight`: levels that the pool counts for."""
        self._prior, self._weight = prior, weight
        self._lanes: dict[str, _Evidence] = {}
        self._requests: dict[str, _Evidence] = {}

    def acceptances(self, requests: Sequence[str], lane: str) -> list[float]:
        pooled = self.of_lane(lane)
        return [self._shrunk(self._requests.get(name), lane, pooled) for name in requests]

    def of_lane(self, lane: str) -> float:
        return self._shrunk(self._lanes.get(lane), lane, self._prior)

    def evidence(self, request: str, lane: str) -> float:
        """Levels that the request has shown on this lane."""
        known = self._requests.get(request)
        return known.reached if known is not None and known.lane == lane else 0.0

    def observe(self, request: str, lane: str, survived: float, reached: float) -> None:
        """A drafted tree: the sum of its levels' masses, and of those above them."""
        known = self._requests.get(request)
        if known is None or known.lane != lane:
            known = self._requests[request] = _Evidence(lane)
        known.survived = _FADE * known.survived + survived
        known.reached = _FADE * known.reached + reached
        pool = self._lanes.setdefault(lane, _Evidence(lane))
        pool.survived += survived
        pool.reached += reached
        if pool.reached > _LANE_MEMORY:
            pool.survived /= 2
            pool.reached /= 2

    def forget(self, request: str) -> None:
        self._requests.pop(request, None)

    def _shrunk(self, known: _Evidence | None, lane: str, prior: float) -> float:
        if known is None or known.lane != lane:
            return prior
        return (known.survived + self._weight * prior) / (known.reached + self._weight)
