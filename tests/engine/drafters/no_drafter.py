"""The drafter that proposes nothing: plain decoding behind the same protocol."""

from collections.abc import Iterable, Sequence

from engine.protocol import ContinueDrafting, Draft, DraftOrder, Missing, NoRoom, to_ordered_depth
from policies.tree import DraftTree


class NoDrafter:
    def __init__(self, name: str = "none") -> None:
        self.name = name

    def draft(
        self, orders: Sequence[DraftOrder], go_on: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        prefixes = [order.prefix for order in orders]
        return [Draft(p.request, p.attempt, p.round, DraftTree.empty()) for p in prefixes]

    def forget(self, requests: Iterable[str]) -> None:
        """Nothing was remembered."""

    def roll_back(self, requests: Iterable[str]) -> None:
        """Nothing was begun."""
