"""For policies that decide every round from what that round shows."""

from collections.abc import Sequence

from policies.request import RoundOutcome


class Stateless:
    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        """Learns nothing."""

    def observe_read(
        self, request: str, lane: str, matched: Sequence[bool], covered: Sequence[bool]
    ) -> None:
        """Nor from that."""

    def forget(self, request: str) -> None:
        """Knows nothing of it."""
