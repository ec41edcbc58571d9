"""Leaves lanes on which no request drafts out of the next rounds, which saves planning them."""

from policies.protocols import LaneBatch

_LONGEST = 12
"""The most rounds that a lane is left out, because its drafter's unread tokens accumulate
meanwhile."""


class LaneBackoff:
    """Leaves a lane out for 1, 2, 3, ... rounds, until a request drafts on it again."""

    def __init__(self) -> None:
        self._rounds: dict[str, int] = {}
        self._left: dict[str, int] = {}

    def considers(self, batch: LaneBatch) -> bool:
        if batch.lane is None or not batch.requests:
            return False
        if self._left.get(batch.lane, 0) == 0 or any(one.slo.tpot_s for one in batch.requests):
            return True
        self._left[batch.lane] -= 1
        return False

    def rounds(self, lane: str) -> int:
        """Rounds since the lane was last considered."""
        return 1 + self._rounds.get(lane, 0)

    def leave_out(self, lane: str) -> None:
        self._rounds[lane] = min(self._rounds.get(lane, 0) + 1, _LONGEST)
        self._left[lane] = self._rounds[lane]

    def bring_back(self, lane: str) -> None:
        self._rounds.pop(lane, None)
        self._left.pop(lane, None)
