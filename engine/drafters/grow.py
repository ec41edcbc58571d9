"""A draft tree from what followed a request's last tokens elsewhere, in one compiled call.

The belief in a token is how many of the places agree on it. A beam, as AdaServe's step 1: of all
children of a level the `width` best by path confidence form the next one.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.drafters.text_index import NONE, TOKENS, Store, TextIndex, Tokens, longest_match
from policies.tree import ROOT, DraftTree

DOUBT = 2.0
"""How much a short match is doubted: `agree` of `total` places that match in `length` tokens are a
confidence of agree / (total + DOUBT / length), as if so many more disagreed. A single match of two
tokens earns 0.5, one of 8 tokens 0.8. Siblings sum to less than 1."""

Floats = NDArray[np.float32]


class Reading(NamedTuple):
    """How a drafter reads."""

    shortest: int
    longest: int
    """Of a match, in tokens."""
    places: int
    """The most recent ones are asked; more of them change little and cost time."""


class Grown(NamedTuple):
    tree: DraftTree
    path_confidence: Floats
    level_ends: list[int]
    """How many nodes there are down to each level."""
    place: int
    """Where in `past` the first level's best was found; -1 where the request's own text had it."""


def prepare(reading: Reading) -> None:
    """Compiles now what is compiled at first use, while no reader waits."""
    text = TextIndex()
    text.extend([1, 1])
    grow(text, TextIndex(), reading, depth=1, width=1)


def grow(own: TextIndex, past: TextIndex, reading: Reading, depth: int, width: int) -> Grown:
    """The longer match speaks; the request's own at equal length."""
    tokens, parents, depths, confidence, path_confidence, place = _grow(
        own.store, own.end, past.store, past.end, *reading, depth, width
    )
    tree = DraftTree(tokens, parents, depths, confidence)
    levels = int(depths[-1]) if len(depths) else 0
    ends = np.searchsorted(depths, np.arange(1, levels + 1), side="right").tolist()
    return Grown(tree, path_confidence, ends, place)


class _Tips(NamedTuple):
    """The deepest level, by row."""

    node: Tokens
    path_confidence: Floats
    said: NDArray[np.int32]
    """The last committed tokens, and the path down to here."""
    in_past: NDArray[np.bool_]
    length: Tokens
    """Of the match, what was drafted along it included."""
    places: NDArray[np.int32]
    found: Tokens


class _Texts(NamedTuple):
    own: Store
    own_end: int
    past: Store
    past_end: int
    tail: int
    """How many of its last tokens stand before a tip's path."""


class _Children(NamedTuple):
    """Candidates for the next level, `width` of a tip at most."""

    tip: Tokens
    token: Tokens
    confidence: Floats
    path_confidence: Floats
    """-1 once it is taken."""


@njit(cache=True)
def _tips(width: int, said: int, places: int) -> _Tips:
    return _Tips(
        np.full(width, ROOT, np.int32),
        np.ones(width, np.float32),
        np.empty((width, said), np.int32),
        np.zeros(width, np.bool_),
        np.zeros(width, np.int32),
        np.empty((width, places), np.int32),
        np.zeros(width, np.int32),
    )


@njit(cache=True)
def _grow(
    own: Store,
    own_end: int,
    past: Store,
    past_end: int,
    shortest: int,
    longest: int,
    places: int,
    depth: int,
    width: int,
) -> tuple[Tokens, Tokens, Tokens, Floats, Floats, int]:
    tokens = np.empty(depth * width, np.int32)
    parents = np.empty(depth * width, np.int32)
    depths = np.empty(depth * width, np.int32)
    confidence = np.empty(depth * width, np.float32)
    path_confidence = np.empty(depth * width, np.float32)
    texts = _Texts(own, own_end, past, past_end, min(longest, own_end))
    said = texts.tail + depth
    tips, deeper = _tips(width, said, places), _tips(width, said, places)
    tips.said[0, : texts.tail] = own[TOKENS, own_end - texts.tail : own_end]
    children = _Children(
        np.empty(width * width, np.int32),
        np.empty(width * width, np.int32),
        np.empty(width * width, np.float32),
        np.empty(width * width, np.float32),
    )
    nodes, frontier, begun_at = 0, 1, -1
    for level in range(depth):
        count = 0
        for tip in range(frontier):
            known = count
            count = _branch(texts, tips, tip, width, children, known)
            if count == known:
                # It begins, or its text ends here: read on where the same tokens stood before.
                _search(texts, tips, tip, level, longest)
                if tips.length[tip] >= shortest:
                    count = _branch(texts, tips, tip, width, children, known)
        if level == 0 and count > 0 and tips.in_past[0]:
            begun_at = tips.places[0, 0]
        frontier = 0
        while frontier < width:
            best = _likeliest(children, count)
            if best < 0:
                break
            tip = children.tip[best]
            tokens[nodes] = children.token[best]
            parents[nodes] = tips.node[tip]
            depths[nodes] = level + 1
            confidence[nodes] = children.confidence[best]
            path_confidence[nodes] = children.path_confidence[best]
            _step(texts, tips, tip, level, tokens[nodes], deeper, frontier)
            deeper.node[frontier] = nodes
            deeper.path_confidence[frontier] = children.path_confidence[best]
            children.path_confidence[best] = -1
            nodes += 1
            frontier += 1
        tips, deeper = deeper, tips
    return (
        tokens[:nodes],
        parents[:nodes],
        depths[:nodes],
        confidence[:nodes],
        path_confidence[:nodes],
        begun_at,
    )


@njit(cache=True)
def _search(texts: _Texts, tips: _Tips, tip: int, level: int, most: int) -> None:
    said = texts.tail + level
    recent = tips.said[tip, max(0, said - most) : said]
    here = tips.places[tip]
    elsewhere = np.empty_like(here)
    length, found = longest_match(texts.own, texts.own_end, recent, most, here)
    past_length, past_found = longest_match(texts.past, texts.past_end, recent, most, elsewhere)
    tips.in_past[tip] = past_length > length
    if past_length > length:
        length, found = past_length, past_found
        here[:] = elsewhere
    tips.length[tip], tips.found[tip] = length, found


@njit(cache=True)
def _next(texts: _Texts, tips: _Tips, tip: int, nth: int) -> int:
    """What follows at a place. A match that reaches the own text's end reads on in the draft, so a
    text that repeats itself with a short period is drafted to any depth."""
    place = tips.places[tip, nth]
    if tips.in_past[tip]:
        return texts.past[TOKENS, place] if place < texts.past_end else NONE
    behind = place - texts.own_end
    return texts.own[TOKENS, place] if behind < 0 else tips.said[tip, texts.tail + behind]


@njit(cache=True)
def _branch(
    texts: _Texts, tips: _Tips, tip: int, width: int, children: _Children, count: int
) -> int:
    """Adds a tip's most frequent followers; among equals those seen latest come first."""
    kinds = np.empty(tips.found[tip], np.int32)
    agree = np.zeros(tips.found[tip], np.int32)
    known = total = 0
    for nth in range(tips.found[tip]):
        token = _next(texts, tips, tip, nth)
        if token == NONE:
            continue
        kind = 0
        while kind < known and kinds[kind] != token:
            kind += 1
        if kind == known:
            kinds[known] = token
            known += 1
        agree[kind] += 1
        total += 1
    for _ in range(min(width, known)):
        kind = int(np.argmax(agree[:known]))
        belief = agree[kind] / (total + DOUBT / tips.length[tip])
        children.tip[count] = tip
        children.token[count] = kinds[kind]
        children.confidence[count] = belief
        children.path_confidence[count] = tips.path_confidence[tip] * belief
        agree[kind] = 0
        count += 1
    return count


@njit(cache=True)
def _likeliest(children: _Children, count: int) -> int:
    """The first of equals: the better parent's, and what that one prefers."""
    best = -1
    for child in range(count):
        path = children.path_confidence[child]
        if path >= 0 and (best < 0 or path > children.path_confidence[best]):
            best = child
    return best


@njit(cache=True)
def _step(
    texts: _Texts, tips: _Tips, tip: int, level: int, token: int, deeper: _Tips, row: int
) -> None:
    """The tip behind `token`, with the places that agreed on it."""
    said = texts.tail + level
    deeper.said[row, :said] = tips.said[tip, :said]
    deeper.said[row, said] = token
    deeper.in_past[row] = tips.in_past[tip]
    deeper.length[row] = tips.length[tip] + 1
    found = 0
    for nth in range(tips.found[tip]):
        if _next(texts, tips, tip, nth) == token:
            deeper.places[row, found] = tips.places[tip, nth] + 1
            found += 1
    deeper.found[row] = found
