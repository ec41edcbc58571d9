"""Prompt lookup: what followed the last few tokens when they stood in this request before."""

from collections.abc import Iterable, Sequence

from engine.drafters.level_view import as_far_as_wanted
from engine.drafters.lookup_confidence import Experience
from engine.drafters.lookup_tree import Grown, Reading, grow, prepare
from engine.drafters.text_index import TextIndex
from engine.protocol import ContinueDrafting, Draft, DraftOrder, Missing, NoRoom, to_ordered_depth
from engine.soft_state import HeldRequest, SoftState

PLACES = 8
_NO_TEXT = TextIndex()


class NgramDrafter:
    """Soft state: one index per request, over its committed tokens alone."""

    def __init__(
        self,
        name: str = "ngram",
        min_length: int = 1,
        max_length: int = 4,
        max_requests: int = 1024,
    ) -> None:
        if not 1 <= min_length <= max_length:
            raise ValueError(f"1 <= min_length <= max_length, got {min_length} and {max_length}")
        self.name = name
        self._reading = Reading(min_length, max_length, PLACES)
        prepare(self._reading)
        self._indexes: dict[str, TextIndex] = {}
        self._experience = Experience()
        self._state = SoftState(max_requests, on_drop=self._drop)

    def draft(
        self, orders: Sequence[DraftOrder], go_on: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        held = self._state.accept([order.prefix for order in orders])
        grown = [
            one if isinstance(one, Missing) else self._grow(order, one)
            for order, one in zip(orders, held, strict=True)
        ]
        return as_far_as_wanted(orders, grown, go_on)

    def forget(self, requests: Iterable[str]) -> None:
        self._state.forget(requests)

    def roll_back(self, requests: Iterable[str]) -> None:
        for request in requests:
            self._indexes.pop(request, None)
            self._experience.forget(request)

    def _grow(self, order: DraftOrder, held: HeldRequest) -> Grown:
        request = order.prefix.request
        if request not in self._indexes:
            self._indexes[request] = TextIndex()
        index = self._indexes[request]
        index.follow(held.committed.ids, held.unchanged)
        self._experience.learn(request, held.committed.ids, held.unchanged)
        weights = self._experience.weights
        grown = grow(index, _NO_TEXT, self._reading, weights, order.depth, order.width)
        self._experience.note(request, index.end, grown.tree, grown.kinds)
        return grown

    def _drop(self, request: str, held: HeldRequest) -> None:
        self._indexes.pop(request, None)
        self._experience.forget(request)
