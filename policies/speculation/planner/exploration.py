"""Drafts that are not expected to pay, within a share of the time: a drafter that does not draft
cannot show that it has become better."""

from collections.abc import Sequence


class Exploration:
    def __init__(self, share: float) -> None:
        """`share`: of the time, over all lanes together."""
        self._share = share
        self._saved_s: dict[str, float] = {}
        """By lane, at most a round's worth."""

    def save(self, lane: str, plain_s: float, rounds: int) -> None:
        """So many rounds have passed, each of which would take `plain_s` without drafts."""
        saved_s = self._saved_s.setdefault(lane, 0.0)
        saved_s += self._share / len(self._saved_s) * plain_s * rounds
        self._saved_s[lane] = min(saved_s, plain_s)

    def afford(self, lane: str, cost_s: Sequence[float], slack_s: float) -> int:
        """How many requests explore in this round, `cost_s` being what the first 1, 2, 4, ... would
        cost it: as many as the time saved pays for, and none beyond what any cap allows."""
        count = 0
        for power, seconds in enumerate(cost_s):
            if seconds <= min(self._saved_s[lane], slack_s):
                count = 1 << power
        if count:
            self._saved_s[lane] -= cost_s[count.bit_length() - 1]
        return count
