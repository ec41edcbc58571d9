"""Exploration: a small share of the time goes to drafts that are not expected to pay, because a
drafter that never drafts could not show that it has become better."""

from collections.abc import Sequence


class Exploration:
    def __init__(self, share: float) -> None:
        """`share`: of the time, for all lanes together."""
        self._share = share
        self._budget_s: dict[str, float] = {}
        """Exploration budget of each lane, at most the time of one plain round."""

    def add_budget(self, lane: str, plain_s: float, rounds: int) -> None:
        """Adds to the lane's budget for `rounds` rounds, each of which takes `plain_s` without
        drafts."""
        budget_s = self._budget_s.setdefault(lane, 0.0)
        budget_s += self._share / len(self._budget_s) * plain_s * rounds
        self._budget_s[lane] = min(budget_s, plain_s)

    def spend(self, lane: str, cost_s: Sequence[float], slack_s: float) -> int:
        """The number of requests that explore in this round; `cost_s` are the costs of the first 1,
        2, 4, ... of them. Limited by the lane's budget, from which it is paid, and by the slack of
        all caps."""
        count = 0
        for power, seconds in enumerate(cost_s):
            if seconds <= min(self._budget_s[lane], slack_s):
                count = 1 << power
        if count:
            self._budget_s[lane] -= cost_s[count.bit_length() - 1]
        return count
