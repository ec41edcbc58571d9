"""A suffix tree of bounded depth over growing texts, with counts, from which texts can leave.

It holds every substring of up to `depth` tokens. A node counts the suffixes that pass through
it. A suffix that shares its path with no other is a leaf that points into its text, so it grows
with the text for free (Ukkonen's trick), and a token costs as many steps as the text's end has
open suffixes: those that also stand elsewhere in the tree, at most `depth`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class Text:
    """One sequence in the tree."""

    tokens: list[int] = field(default_factory=list)
    open: list["Node"] = field(default_factory=list)
    """Where its suffixes end that are no leaves, longest first; the depths are n, ..., 2, 1."""


class Leaf(NamedTuple):
    """A suffix of one text alone: it continues at text.tokens[position]."""

    text: Text
    position: int


@dataclass(slots=True, eq=False)
class Node:
    text: Text | None
    """The newest text that passes; None after it has left."""
    count: int = 0
    children: dict[int, "Node | Leaf"] = field(default_factory=dict)


class SuffixTree:
    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._root = Node(text=None)
        self._newest: Text | None = None

    def extend(self, text: Text, tokens: Iterable[int]) -> None:
        """Adds tokens to the newest text, or a new text. An older text no longer grows: its last
        suffixes may have been split off where it ended."""
        if text.tokens and text is not self._newest:
            raise ValueError("another text was added behind this one, so it is complete")
        self._newest = text
        for token in tokens:
            text.tokens.append(token)
            self._append_last(text, token)

    def _append_last(self, text: Text, token: int) -> None:
        end = len(text.tokens)
        depth = len(text.open) + 1
        still_open: list[Node] = []
        for node in [*text.open, self._root]:
            child = node.children.get(token)
            if child is None:
                node.children[token] = Leaf(text, end)
            else:
                if isinstance(child, Leaf):
                    child = self._split(child, depth)
                    node.children[token] = child
                child.count += 1
                child.text = text
                if depth < self._depth:
                    still_open.append(child)
            depth -= 1
        text.open = still_open

    def _split(self, leaf: Leaf, depth: int) -> Node:
        """The node that stands for `leaf` once another suffix reaches it."""
        text, position = leaf
        node = Node(text, count=1)
        if depth < self._depth and position < len(text.tokens):
            node.children[text.tokens[position]] = Leaf(text, position + 1)
        return node

    def remove(self, text: Text) -> None:
        for start in range(len(text.tokens)):
            node = self._root
            for token in text.tokens[start : start + self._depth]:
                child = node.children[token]
                if isinstance(child, Leaf) or child.count == 1:
                    # No other suffix passes here, so what hangs below goes with it.
                    del node.children[token]
                    break
                child.count -= 1
                if child.text is text:
                    child.text = None
                node = child

    def longest_match(self, tokens: Sequence[int], limit: int) -> tuple[Node | Leaf, int] | None:
        """The longest suffix of `tokens`, of at most `limit`, that has a continuation, and its
        length. If a suffix has one then all shorter ones do, hence the binary search."""
        best: tuple[Node | Leaf, int] | None = None
        low, high = 1, min(limit, len(tokens), self._depth - 1)
        while low <= high:
            length = (low + high) // 2
            place = self._find(tokens[len(tokens) - length :])
            if place is not None and continuations(place):
                best = place, length
                low = length + 1
            else:
                high = length - 1
        return best

    def _find(self, tokens: Sequence[int]) -> Node | Leaf | None:
        node = self._root
        for matched, token in enumerate(tokens, start=1):
            child = node.children.get(token)
            if child is None:
                return None
            if isinstance(child, Leaf):
                text, position = child
                rest = list(tokens[matched:])
                found = text.tokens[position : position + len(rest)] == rest
                return Leaf(text, position + len(rest)) if found else None
            node = child
        return node


def continuations(place: Node | Leaf) -> list[tuple[int, int, Node | Leaf]]:
    """(token, how many suffixes go on with it, the place behind it)."""
    if isinstance(place, Leaf):
        text, position = place
        if position == len(text.tokens):
            return []
        return [(text.tokens[position], 1, Leaf(text, position + 1))]
    return [
        (token, 1 if isinstance(child, Leaf) else child.count, child)
        for token, child in place.children.items()
    ]
