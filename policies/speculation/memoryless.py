"""For policies that decide every round from what that round shows."""

from collections.abc import Sequence

from policies.request import RoundOutcome


class Memoryless:
    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        """Learns nothing."""

    def forget(self, request: str) -> None:
        """Knows nothing of it."""
