"""Suffix drafting (SuffixDecoding): what followed this request's last tokens, wherever they stood.

Two suffix trees are asked: one over the request's own prompt and output, and one over past
outputs of all requests. The longer match speaks; the request's own at equal length.
"""

from collections.abc import Iterable, Sequence
from heapq import nlargest
from typing import NamedTuple

from engine.drafters.beam import Branch, draft_from_places, evidence_confidence
from engine.drafters.suffix_tree import Leaf, Node, SuffixTree, Text, continuations
from engine.protocol import ContinueDrafting, Draft, DraftOrder, Missing, NoRoom, to_ordered_depth
from engine.soft_state import HeldRequest, SoftState

READ_ON = 6
"""Levels of the trees below the longest match; to draft deeper, a place is sought anew."""


class Place(NamedTuple):
    """Somewhere in one of the trees, reached from the end of a request's committed tokens."""

    at: Node | Leaf
    match_length: int
    own: SuffixTree
    recent: tuple[int, ...]
    """The last tokens up to here, drafted ones included."""


class PastOutputs:
    """A suffix tree over whole outputs; the least recently used leave when it is full."""

    def __init__(self, max_tokens: int, depth: int) -> None:
        self.tree = SuffixTree(depth)
        self._max_tokens = max_tokens
        self._tokens = 0
        self._by_use: dict[Text, None] = {}  # least recently used first

    def learn(self, tokens: Sequence[int]) -> None:
        text = Text()
        self.tree.extend(text, tokens)
        self._by_use[text] = None
        self._tokens += len(text.tokens)
        while self._tokens > self._max_tokens:
            oldest = next(iter(self._by_use))
            del self._by_use[oldest]
            self._tokens -= len(oldest.tokens)
            self.tree.remove(oldest)

    def touch(self, text: Text | None) -> None:
        """Notes that a draft came from this text; others' texts are passed over."""
        if text in self._by_use:
            del self._by_use[text]
            self._by_use[text] = None


class SuffixDrafter:
    """Soft state: a tree per request, and the past outputs.

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
        self._min_match = min_match
        self._max_match = max_match
        self._depth = max_match + READ_ON
        self._past = PastOutputs(past_tokens, self._depth)
        self._own: dict[str, tuple[SuffixTree, Text]] = {}
        self._state = SoftState(max_requests, on_drop=self._drop)

    def learn(self, tokens: Sequence[int]) -> None:
        """Takes an output of any origin into the past outputs."""
        self._past.learn(tokens)

    def draft(
        self, orders: Sequence[DraftOrder], go_on: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        held = self._state.accept([order.prefix for order in orders])
        starts = [
            one if isinstance(one, Missing) else self._start(order, one)
            for order, one in zip(orders, held, strict=True)
        ]
        return draft_from_places(orders, starts, self._continuations, go_on)

    def forget(self, requests: Iterable[str]) -> None:
        self._state.forget(requests)

    def _drop(self, request: str, held: HeldRequest) -> None:
        self._own.pop(request, None)
        self._past.learn(held.committed.ids[held.start.prompt_len :])

    def _start(self, order: DraftOrder, held: HeldRequest) -> Place | None:
        request = order.prefix.request
        tree, text = self._own.get(request, (SuffixTree(self._depth), Text()))
        if held.unchanged < len(text.tokens):
            # Only a request that starts anew rewrites its committed tokens.
            tree, text = SuffixTree(self._depth), Text()
        self._own[request] = tree, text
        tree.extend(text, held.committed.ids[len(text.tokens) :])
        return self._match(tree, tuple(text.tokens[-self._max_match :]))

    def _match(self, own: SuffixTree, recent: tuple[int, ...]) -> Place | None:
        found = (tree.longest_match(recent, self._max_match) for tree in (own, self._past.tree))
        at, length = max(
            (match for match in found if match is not None),
            key=lambda match: match[1],
            default=(None, 0),
        )
        if at is None or length < self._min_match:
            return None
        return Place(at, length, own, recent)

    def _continuations(self, place: Place, width: int) -> list[Branch[Place]]:
        branches = continuations(place.at)
        if not branches:
            # The text ends here: read on behind another place with the same last tokens.
            elsewhere = self._match(place.own, place.recent)
            if elsewhere is None:
                return []
            place = elsewhere
            branches = continuations(place.at)
        self._past.touch(place.at.text)
        total = sum(count for _, count, _ in branches)
        # Among equally frequent ones those that were seen first the latest.
        likeliest = nlargest(width, reversed(branches), key=lambda branch: branch[1])
        length = place.match_length
        return [
            Branch(
                token,
                evidence_confidence(count, total, length),
                Place(at, length + 1, place.own, (*place.recent, token)[-self._max_match :]),
            )
            for token, count, at in likeliest
        ]
