"""Grows a draft tree from what followed a request's last tokens elsewhere, in one compiled call.

Two texts are searched, each for its longest match, and the tokens that followed there become nodes
with the confidence of such evidence (lookup_confidence.py). A beam, as AdaServe's step 1: of all
children of a level the `width` best by path confidence form the next one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.drafters.lookup_confidence import (
    OWN,
    PAST,
    TEXTS,
    EvidenceKinds,
    LookupCalibration,
    Weights,
    confidence_of,
    evidence_kind,
)
from engine.drafters.text_index import NONE, TOKENS, Store, TextIndex, Tokens, longest_match
from policies.tree import ROOT, DraftTree

Floats = NDArray[np.float32]


class SearchSettings(NamedTuple):
    min_length: int
    max_length: int
    """Tokens of a match."""
    max_positions: int
    """The most recent positions of a match that are read; more change little and cost time."""


class LookupTree(NamedTuple):
    tree: DraftTree
    path_confidence: Floats
    kinds: EvidenceKinds
    level_ends: list[int]
    """The number of nodes down to each level."""
    past_position: int
    """Where in the past outputs the first node was found; -1 if in the request's own text."""


def compile_kernels(settings: SearchSettings) -> None:
    """Compiles every numba function of a lookup now, so that no request waits for it."""
    text, calibration = TextIndex(), LookupCalibration()
    text.extend([1, 1])
    grown = grow(text, TextIndex(), settings, calibration.weights, depth=1, width=1)
    calibration.record("", text.end, grown.tree, grown.kinds)
    calibration.update("", [1, 1, 1], unchanged=text.end)


def grow(
    own: TextIndex,
    past: TextIndex,
    settings: SearchSettings,
    weights: Weights,
    depth: int,
    width: int,
) -> LookupTree:
    tokens, parents, depths, confidence, path_confidence, kinds, past_position = _grow(
        own.store, own.end, past.store, past.end, weights, *settings, depth, width
    )
    tree = DraftTree(tokens, parents, depths, confidence)
    return LookupTree(tree, path_confidence, kinds, _level_ends(depths), past_position)


def keep_nodes(grown: LookupTree, kept: Sequence[int]) -> LookupTree:
    """The tree of these nodes, in rising order and with all their ancestors."""
    tree = grown.tree
    if len(kept) == len(tree):
        return grown
    number = {ROOT: ROOT, **{node: place for place, node in enumerate(kept)}}
    parents = np.array([number[parent] for parent in tree.parents[kept].tolist()], np.int32)
    left = DraftTree(tree.tokens[kept], parents, tree.depth[kept], tree.confidence[kept])
    return LookupTree(
        left,
        grown.path_confidence[kept],
        grown.kinds[kept],
        _level_ends(left.depth),
        grown.past_position if 0 in kept else -1,
    )


def _level_ends(depths: Tokens) -> list[int]:
    levels = int(depths[-1]) if len(depths) else 0
    ends: list[int] = np.searchsorted(depths, np.arange(1, levels + 1), side="right").tolist()
    return ends


class _Frontier(NamedTuple):
    """The leaves of the deepest level, one per row; matches by [leaf, text]."""

    node: Tokens
    path_confidence: Floats
    context: NDArray[np.int32]
    """[leaf, tokens]: the last committed tokens, then the path down to the leaf."""
    length: NDArray[np.int32]
    """Tokens of the match, including those drafted along it."""
    positions: NDArray[np.int32]
    found: NDArray[np.int32]
    """How many of the positions are filled."""


class _Texts(NamedTuple):
    own: Store
    own_end: int
    past: Store
    past_end: int
    tail: int
    """The number of committed tokens at the start of each leaf's context."""
    min_length: int
    max_length: int


class _Children(NamedTuple):
    """Candidates for the next level, at most `width` per leaf."""

    leaf: Tokens
    token: Tokens
    kinds: EvidenceKinds
    confidence: Floats
    path_confidence: Floats
    """-1 once the child is in the tree."""


@njit(cache=True)
def _empty_frontier(width: int, context: int, positions: int) -> _Frontier:
    return _Frontier(
        np.full(width, ROOT, np.int32),
        np.ones(width, np.float32),
        np.empty((width, context), np.int32),
        np.zeros((width, len(TEXTS)), np.int32),
        np.empty((width, len(TEXTS), positions), np.int32),
        np.zeros((width, len(TEXTS)), np.int32),
    )


@njit(cache=True)
def _grow(
    own: Store,
    own_end: int,
    past: Store,
    past_end: int,
    weights: Weights,
    min_length: int,
    max_length: int,
    max_positions: int,
    depth: int,
    width: int,
) -> tuple[Tokens, Tokens, Tokens, Floats, Floats, EvidenceKinds, int]:
    tokens, parents, depths = np.empty((3, depth * width), np.int32)
    confidence, path_confidence = np.empty((2, depth * width), np.float32)
    kinds = np.empty((depth * width, len(TEXTS)), np.int16)
    texts = _Texts(own, own_end, past, past_end, min(max_length, own_end), min_length, max_length)
    context = texts.tail + depth
    frontier = _empty_frontier(width, context, max_positions)
    following = _empty_frontier(width, context, max_positions)
    frontier.context[0, : texts.tail] = own[TOKENS, own_end - texts.tail : own_end]
    children = _Children(
        np.empty(width * width, np.int32),
        np.empty(width * width, np.int32),
        np.empty((width * width, len(TEXTS)), np.int16),
        np.empty(width * width, np.float32),
        np.empty(width * width, np.float32),
    )
    nodes, leaves, past_position = 0, 1, -1
    for level in range(depth):
        count = 0
        for leaf in range(leaves):
            count = _add_children(texts, frontier, leaf, level, weights, width, children, count)
        leaves = 0
        while leaves < width:
            best = _best_child(children, count)
            if best < 0:
                break
            leaf = children.leaf[best]
            tokens[nodes] = children.token[best]
            parents[nodes] = frontier.node[leaf]
            depths[nodes] = level + 1
            confidence[nodes] = children.confidence[best]
            path_confidence[nodes] = children.path_confidence[best]
            kinds[nodes] = children.kinds[best]
            _advance(texts, frontier, leaf, level, tokens[nodes], following, leaves)
            following.node[leaves] = nodes
            following.path_confidence[leaves] = children.path_confidence[best]
            children.path_confidence[best] = -1
            if nodes == 0 and following.found[0, OWN] == 0:
                past_position = following.positions[0, PAST, 0] - 1
            nodes += 1
            leaves += 1
        frontier, following = following, frontier
    return (
        tokens[:nodes],
        parents[:nodes],
        depths[:nodes],
        confidence[:nodes],
        path_confidence[:nodes],
        kinds[:nodes],
        past_position,
    )


@njit(cache=True)
def _add_children(
    texts: _Texts,
    frontier: _Frontier,
    leaf: int,
    level: int,
    weights: Weights,
    width: int,
    children: _Children,
    count: int,
) -> int:
    """Adds a leaf's best followers after the first `count` children; returns the new count.

    Among equal followers the first wins: the request's own text before past outputs, and in a text
    the most recent position.
    """
    followers = np.empty(frontier.positions.shape[1] * frontier.positions.shape[2], np.int32)
    agree = np.empty((len(followers), len(TEXTS)), np.int32)
    totals, known = np.zeros(len(TEXTS), np.int32), 0
    for text in TEXTS:
        known, totals[text] = _count_followers(texts, frontier, leaf, text, followers, agree, known)
        if totals[text] == 0:
            # At the root, or where no position continues: search for the tokens read so far.
            _search(texts, frontier, leaf, level, text)
            known, totals[text] = _count_followers(
                texts, frontier, leaf, text, followers, agree, known
            )
    confidences, kinds = np.empty(known), np.empty((known, len(TEXTS)), np.int16)
    for one in range(known):
        for text in TEXTS:
            kinds[one, text] = evidence_kind(
                frontier.length[leaf, text], agree[one, text], totals[text]
            )
        confidences[one] = confidence_of(weights, kinds[one, OWN], kinds[one, PAST])
    left = 1.0
    for _ in range(min(width, known)):
        one = int(np.argmax(confidences))
        # Confidences are computed one by one; siblings must not sum to more than 1.
        confidence = min(confidences[one], left)
        left -= confidence
        children.leaf[count] = leaf
        children.token[count] = followers[one]
        children.kinds[count] = kinds[one]
        children.confidence[count] = confidence
        children.path_confidence[count] = frontier.path_confidence[leaf] * confidence
        confidences[one] = -1.0
        count += 1
    return count


@njit(cache=True)
def _count_followers(
    texts: _Texts,
    frontier: _Frontier,
    leaf: int,
    text: int,
    followers: Tokens,
    agree: NDArray[np.int32],
    known: int,
) -> tuple[int, int]:
    """Counts by token how many positions of a text continue with it.

    Returns the number of followers known so far, and of positions that continue at all.
    """
    total = 0
    for nth in range(frontier.found[leaf, text]):
        token = _next_token(texts, frontier, leaf, text, nth)
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
def _search(texts: _Texts, frontier: _Frontier, leaf: int, level: int, text: int) -> None:
    end = texts.tail + level
    recent = frontier.context[leaf, max(0, end - texts.max_length) : end]
    positions = frontier.positions[leaf, text]
    if text == OWN:
        length, found = longest_match(texts.own, texts.own_end, recent, texts.max_length, positions)
    else:
        length, found = longest_match(
            texts.past, texts.past_end, recent, texts.max_length, positions
        )
    if length < texts.min_length:
        length = found = 0
    frontier.length[leaf, text], frontier.found[leaf, text] = length, found


@njit(cache=True)
def _next_token(texts: _Texts, frontier: _Frontier, leaf: int, text: int, nth: int) -> int:
    """The token at a matching position.

    A match that reaches the end of the own text continues in the draft itself, so a text that
    repeats with a short period is drafted to any depth.
    """
    position = frontier.positions[leaf, text, nth]
    if text == PAST:
        return texts.past[TOKENS, position] if position < texts.past_end else NONE
    beyond = position - texts.own_end
    if beyond < 0:
        return texts.own[TOKENS, position]
    return frontier.context[leaf, texts.tail + beyond]


@njit(cache=True)
def _best_child(children: _Children, count: int) -> int:
    """The child of the highest path confidence, the first of equals; -1 if none is left."""
    best = -1
    for child in range(count):
        path = children.path_confidence[child]
        if path >= 0 and (best < 0 or path > children.path_confidence[best]):
            best = child
    return best


@njit(cache=True)
def _advance(
    texts: _Texts,
    frontier: _Frontier,
    leaf: int,
    level: int,
    token: int,
    following: _Frontier,
    row: int,
) -> None:
    """Writes the leaf after `token`, with the positions that continue with it."""
    end = texts.tail + level
    following.context[row, :end] = frontier.context[leaf, :end]
    following.context[row, end] = token
    for text in TEXTS:
        following.length[row, text] = frontier.length[leaf, text] + 1
        found = 0
        for nth in range(frontier.found[leaf, text]):
            if _next_token(texts, frontier, leaf, text, nth) == token:
                following.positions[row, text, found] = frontier.positions[leaf, text, nth] + 1
                found += 1
        following.found[row, text] = found
