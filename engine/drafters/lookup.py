"""Prompt lookup: what followed the last few tokens when they stood in this request before."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.drafters.beam import Branch, draft_from_places, evidence_confidence
from engine.protocol import ContinueDrafting, Draft, DraftOrder, Missing, NoRoom, to_ordered_depth
from engine.soft_state import HeldRequest, SoftState

MAX_MATCHES = 8
"""The most recent earlier matches are asked; more of them change little and cost time."""


class Matches(NamedTuple):
    """Places in one request's text that read alike, by the index of what comes next."""

    text: Sequence[int]
    drafted: tuple[int, ...]
    """Stands behind the text: a match that reaches the text's end reads on in the draft, so a
    text that repeats itself with a short period is drafted to any depth."""
    following: Sequence[int]
    """Most recent first."""
    length: int


class NgramIndex:
    """Where each n-gram of a growing text was followed by another token."""

    def __init__(self, min_length: int, max_length: int) -> None:
        self._lengths = range(max_length, min_length - 1, -1)
        self._text: Sequence[int] = ()
        self._clear()

    def _clear(self) -> None:
        self._indexed = 0
        self._following: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)

    def update(self, text: Sequence[int], unchanged: int) -> None:
        """Follows `text`, of which the first `unchanged` tokens are as they were."""
        if unchanged < self._indexed:
            # Only a request that starts anew rewrites its committed tokens.
            self._clear()
        for position in range(self._indexed, len(text)):
            for length in self._lengths:
                if length <= position:
                    self._following[tuple(text[position - length : position])].append(position)
        self._text = text
        self._indexed = len(text)

    def longest_match(self) -> Matches | None:
        """Of the text's own end, earlier in the text."""
        text = self._text
        for length in self._lengths:
            following = self._following.get(tuple(text[-length:]))
            if following:
                return Matches(text, (), following[: -MAX_MATCHES - 1 : -1], length)
        return None


def continuations(matches: Matches, width: int) -> list[Branch[Matches]]:
    """The tokens that followed most often, each with the matches that agree on it."""
    text, drafted, following, length = matches
    agreeing: dict[int, list[int]] = {}
    for position in following:
        known = position < len(text)
        token = text[position] if known else drafted[position - len(text)]
        agreeing.setdefault(token, []).append(position + 1)
    most_frequent = sorted(agreeing.items(), key=lambda item: -len(item[1]))
    return [
        Branch(
            token,
            evidence_confidence(len(agree), len(following), length),
            Matches(text, (*drafted, token), agree, length + 1),
        )
        for token, agree in most_frequent[:width]
    ]


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
        self._lengths = (min_length, max_length)
        self._indexes: dict[str, NgramIndex] = {}
        self._state = SoftState(max_requests, on_drop=self._drop)

    def draft(
        self, orders: Sequence[DraftOrder], go_on: ContinueDrafting = to_ordered_depth
    ) -> list[Draft | Missing | NoRoom]:
        held = self._state.accept([order.prefix for order in orders])
        starts = [
            one if isinstance(one, Missing) else self._start(order, one)
            for order, one in zip(orders, held, strict=True)
        ]
        return draft_from_places(orders, starts, continuations, go_on)

    def forget(self, requests: Iterable[str]) -> None:
        self._state.forget(requests)

    def _start(self, order: DraftOrder, held: HeldRequest) -> Matches | None:
        request = order.prefix.request
        if request not in self._indexes:
            self._indexes[request] = NgramIndex(*self._lengths)
        index = self._indexes[request]
        index.update(held.committed.ids, held.unchanged)
        return index.longest_match()

    def _drop(self, request: str, held: HeldRequest) -> None:
        self._indexes.pop(request, None)
