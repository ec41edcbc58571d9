"""Suffix drafting (SuffixDecoding): what followed this request's last tokens, wherever they stood.

Two texts are asked: the request's own prompt and output, and the past outputs of all requests. How
far each is believed is learned from what became of it (lookup_confidence.py).
"""

from collections.abc import Iterable, Sequence

from engine.drafters.level_view import as_far_as_wanted
from engine.drafters.lookup_confidence import Experience
from engine.drafters.lookup_tree import Grown, Reading, grow, prepare
from engine.drafters.past_outputs import PastOutputs
from engine.drafters.text_index import TextIndex
from engine.protocol import ContinueDrafting, Draft, DraftOrder, Missing, NoRoom, to_ordered_depth
from engine.soft_state import HeldRequest, SoftState

PLACES = 16


class SuffixDrafter:
    """Soft state: an index per request, and the past outputs.

    An output is learnt when its request leaves (`forget`, or eviction) and through `learn`. A
    new drafter knows none, so a benchmark that must not see its own answers starts with one.
    """

    def __init__(
        self,
        name: str = "suffix",
        past_tokens: int = 100_000,
        min_match: int = 1,
        max_match: int = 10,
        max_requests: int = 256,
    ) -> None:
        """`past_tokens`: of past outputs, remembered at most (docs/drafters.md: their memory)."""
        if not 1 <= min_match <= max_match:
            raise ValueError(f"1 <= min_match <= max_match, got {min_match} and {max_match}")
        self.name = name
        self._reading = Reading(min_match, max_match, PLACES)
        prepare(self._reading)
        self._past = PastOutputs(past_tokens)
        self._own: dict[str, TextIndex] = {}
        self._experience = Experience()
        self._state = SoftState(max_requests, on_drop=self._drop)

    def learn(self, tokens: Sequence[int]) -> None:
        """Takes an output of any origin into the past outputs."""
        self._past.learn(tokens)

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
            self._own.pop(request, None)
            self._experience.forget(request)

    def _grow(self, order: DraftOrder, held: HeldRequest) -> Grown:
        request = order.prefix.request
        if request not in self._own:
            self._own[request] = TextIndex()
        own = self._own[request]
        own.follow(held.committed.ids, held.unchanged)
        self._experience.learn(request, held.committed.ids, held.unchanged)
        weights = self._experience.weights
        grown = grow(own, self._past.index, self._reading, weights, order.depth, order.width)
        self._experience.note(request, own.end, grown.tree, grown.kinds)
        if grown.place >= 0:
            self._past.touch(grown.place)
        return grown

    def _drop(self, request: str, held: HeldRequest) -> None:
        self._own.pop(request, None)
        self._experience.forget(request)
        self._past.learn(held.committed.ids[held.start.prompt_len :])
