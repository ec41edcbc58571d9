"""The base of speculation policies that keep no state of requests."""

from collections.abc import Sequence

from policies.request import RoundOutcome


class Stateless:
    def observe(self, outcomes: Sequence[RoundOutcome], now: float) -> None:
        """Ignored."""

    def forget(self, request: str) -> None:
        """There is no state to drop."""
