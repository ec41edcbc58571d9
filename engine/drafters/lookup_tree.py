"""A draft tree from what followed a request's last tokens elsewhere, in one compiled call.

Two texts are asked, each for its longest match: what followed there is drafted, and believed as far
as such evidence was right before (lookup_confidence.py). A beam, as AdaServe's step 1: of all
children of a level the `width` best by path confidence form the next one.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.drafters.lookup_confidence import (
    OWN,
    PAST,
    TEXTS,
    Experience,
    Kinds,
    Weights,
    believe,
    kind_of,
)
from engine.drafters.text_index import NONE, TOKENS, Store, TextIndex, Tokens, longest_match
from policies.tree import ROOT, DraftTree

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
    kinds: Kinds
    """Of the evidence for each node."""
    level_ends: list[int]
    """How many nodes there are down to each level."""
    place: int
    """Where in `past` the first level's best was found; -1 where the request's own text had it."""


def prepare(reading: Reading) -> None:
    """Compiles now what is compiled at first use, while no reader waits."""
    text, experience = TextIndex(), Experience()
    text.extend([1, 1])
    grown = grow(text, TextIndex(), reading, experience.weights, depth=1, width=1)
    experience.note("", text.end, grown.tree, grown.kinds)
    experience.learn("", [1, 1, 1], unchanged=text.end)


def grow(
    own: TextIndex, past: TextIndex, reading: Reading, weights: Weights, depth: int, width: int
) -> Grown:
    tokens, parents, depths, confidence, path_confidence, kinds, place = _grow(
        own.store, own.end, past.store, past.end, weights, *reading, depth, width
    )
    tree = DraftTree(tokens, parents, depths, confidence)
    levels = int(depths[-1]) if len(depths) else 0
    ends = np.searchsorted(depths, np.arange(1, levels + 1), side="right").tolist()
    return Grown(tree, path_confidence, kinds, ends, place)


class _Tips(NamedTuple):
    """The deepest level, by row; matches by row and text."""

    node: Tokens
    path_confidence: Floats
    said: NDArray[np.int32]
    """The last committed tokens, and the path down to here."""
    length: NDArray[np.int32]
    """Of the match, what was drafted along it included."""
    places: NDArray[np.int32]
    found: NDArray[np.int32]


class _Texts(NamedTuple):
    own: Store
    own_end: int
    past: Store
    past_end: int
    tail: int
    """How many of its last tokens stand before a tip's path."""
    shortest: int
    longest: int


class _Children(NamedTuple):
    """Candidates for the next level, `width` of a tip at most."""

    tip: Tokens
    token: Tokens
    kinds: Kinds
    confidence: Floats
    path_confidence: Floats
    """-1 once it is taken."""


@njit(cache=True)
def _tips(width: int, said: int, places: int) -> _Tips:
    return _Tips(
        np.full(width, ROOT, np.int32),
        np.ones(width, np.float32),
        np.empty((width, said), np.int32),
        np.zeros((width, len(TEXTS)), np.int32),
        np.empty((width, len(TEXTS), places), np.int32),
        np.zeros((width, len(TEXTS)), np.int32),
    )


@njit(cache=True)
def _grow(
    own: Store,
    own_end: int,
    past: Store,
    past_end: int,
    weights: Weights,
    shortest: int,
    longest: int,
    places: int,
    depth: int,
    width: int,
) -> tuple[Tokens, Tokens, Tokens, Floats, Floats, Kinds, int]:
    tokens, parents, depths = np.empty((3, depth * width), np.int32)
    confidence, path_confidence = np.empty((2, depth * width), np.float32)
    kinds = np.empty((depth * width, len(TEXTS)), np.int16)
    texts = _Texts(own, own_end, past, past_end, min(longest, own_end), shortest, longest)
    said = texts.tail + depth
    tips, deeper = _tips(width, said, places), _tips(width, said, places)
    tips.said[0, : texts.tail] = own[TOKENS, own_end - texts.tail : own_end]
    children = _Children(
        np.empty(width * width, np.int32),
        np.empty(width * width, np.int32),
        np.empty((width * width, len(TEXTS)), np.int16),
        np.empty(width * width, np.float32),
        np.empty(width * width, np.float32),
    )
    nodes, frontier, begun_at = 0, 1, -1
    for level in range(depth):
        count = 0
        for tip in range(frontier):
            count = _branch(texts, tips, tip, level, weights, width, children, count)
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
            kinds[nodes] = children.kinds[best]
            _step(texts, tips, tip, level, tokens[nodes], deeper, frontier)
            deeper.node[frontier] = nodes
            deeper.path_confidence[frontier] = children.path_confidence[best]
            children.path_confidence[best] = -1
            if nodes == 0 and deeper.found[0, OWN] == 0:
                begun_at = deeper.places[0, PAST, 0] - 1
            nodes += 1
            frontier += 1
        tips, deeper = deeper, tips
    return (
        tokens[:nodes],
        parents[:nodes],
        depths[:nodes],
        confidence[:nodes],
        path_confidence[:nodes],
        kinds[:nodes],
        begun_at,
    )


@njit(cache=True)
def _branch(
    texts: _Texts,
    tips: _Tips,
    tip: int,
    level: int,
    weights: Weights,
    width: int,
    children: _Children,
    count: int,
) -> int:
    """Adds a tip's likeliest followers; among equals the own text's, seen latest, come first."""
    followers = np.empty(tips.places.shape[1] * tips.places.shape[2], np.int32)
    agree = np.empty((len(followers), len(TEXTS)), np.int32)
    totals, known = np.zeros(len(TEXTS), np.int32), 0
    for text in TEXTS:
        known, totals[text] = _follow(texts, tips, tip, text, followers, agree, known)
        if totals[text] == 0:
            # It begins, or its places end here: read on where the same tokens stood before.
            _search(texts, tips, tip, level, text)
            known, totals[text] = _follow(texts, tips, tip, text, followers, agree, known)
    beliefs, kinds = np.empty(known), np.empty((known, len(TEXTS)), np.int16)
    for one in range(known):
        for text in TEXTS:
            kinds[one, text] = kind_of(tips.length[tip, text], agree[one, text], totals[text])
        beliefs[one] = believe(weights, kinds[one, OWN], kinds[one, PAST])
    left = 1.0
    for _ in range(min(width, known)):
        one = int(np.argmax(beliefs))
        # Each was judged by itself: siblings are told so that they sum to no more than 1.
        confidence = min(beliefs[one], left)
        left -= confidence
        children.tip[count] = tip
        children.token[count] = followers[one]
        children.kinds[count] = kinds[one]
        children.confidence[count] = confidence
        children.path_confidence[count] = tips.path_confidence[tip] * confidence
        beliefs[one] = -1.0
        count += 1
    return count


@njit(cache=True)
def _follow(
    texts: _Texts,
    tips: _Tips,
    tip: int,
    text: int,
    followers: Tokens,
    agree: NDArray[np.int32],
    known: int,
) -> tuple[int, int]:
    """Counts what a text goes on with. Returns how many followers are known, and places asked."""
    total = 0
    for nth in range(tips.found[tip, text]):
        token = _next(texts, tips, tip, text, nth)
        if token == NONE:
            continue
        one = 0
        while one < known and followers[one] != token:
            one += 1
        if one == known:
            followers[known] = token
            agree[known] = 0
            known += 1
        agree[one, text] += 1
        total += 1
    return known, total


@njit(cache=True)
def _search(texts: _Texts, tips: _Tips, tip: int, level: int, text: int) -> None:
    said = texts.tail + level
    recent = tips.said[tip, max(0, said - texts.longest) : said]
    places = tips.places[tip, text]
    if text == OWN:
        length, found = longest_match(texts.own, texts.own_end, recent, texts.longest, places)
    else:
        length, found = longest_match(texts.past, texts.past_end, recent, texts.longest, places)
    if length < texts.shortest:
        length = found = 0
    tips.length[tip, text], tips.found[tip, text] = length, found


@njit(cache=True)
def _next(texts: _Texts, tips: _Tips, tip: int, text: int, nth: int) -> int:
    """What follows at a place. A match that reaches the own text's end reads on in the draft, so a
    text that repeats itself with a short period is drafted to any depth."""
    place = tips.places[tip, text, nth]
    if text == PAST:
        return texts.past[TOKENS, place] if place < texts.past_end else NONE
    behind = place - texts.own_end
    return texts.own[TOKENS, place] if behind < 0 else tips.said[tip, texts.tail + behind]


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
    for text in TEXTS:
        deeper.length[row, text] = tips.length[tip, text] + 1
        found = 0
        for nth in range(tips.found[tip, text]):
            if _next(texts, tips, tip, text, nth) == token:
                deeper.places[row, text, found] = tips.places[tip, text, nth] + 1
                found += 1
        deeper.found[row, text] = found
