"""Drafts what followed a request's last tokens elsewhere, in one compiled call.

Two texts are searched, each for its longest match, and the tokens that followed there get the
confidence of such evidence (lookup_confidence.py). The most confident one is drafted, and the
matches that continue with it tell the next. Only chains: of second tokens lookups are more
confident than right.
"""

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

Floats = NDArray[np.float32]


class SearchSettings(NamedTuple):
    max_length: int
    """Tokens of a match."""
    max_positions: int
    """The most recent positions of a match that are read; more change little and cost time."""


class LookupChain(NamedTuple):
    tokens: Tokens
    confidence: Floats
    path_confidence: Floats
    kinds: EvidenceKinds
    past_position: int
    """Where in the past outputs the first token was found; -1 if in the request's own text."""

    def first(self, count: int) -> "LookupChain":
        return LookupChain(
            self.tokens[:count],
            self.confidence[:count],
            self.path_confidence[:count],
            self.kinds[:count],
            self.past_position if count else -1,
        )


def compile_kernels(settings: SearchSettings) -> None:
    """Compiles every numba function of a lookup now, so that no request waits for it."""
    text, calibration = TextIndex(), LookupCalibration()
    text.extend([1, 1])
    grown = grow(text, TextIndex(), settings, calibration.weights, depth=1)
    calibration.record("", text.end, grown.tokens, grown.kinds)
    calibration.update("", [1, 1, 1], unchanged=text.end)


def grow(
    own: TextIndex, past: TextIndex, settings: SearchSettings, weights: Weights, depth: int
) -> LookupChain:
    return LookupChain(*_grow(own.store, own.end, past.store, past.end, weights, *settings, depth))


class _Texts(NamedTuple):
    own: Store
    own_end: int
    past: Store
    past_end: int
    context: Tokens
    """The last committed tokens, then the draft."""
    tail: int
    """The number of committed tokens at the start of the context."""
    max_length: int


class _Matches(NamedTuple):
    """Those of the last tokens, drafted ones included; by text."""

    length: NDArray[np.int32]
    positions: NDArray[np.int32]
    found: NDArray[np.int32]
    """How many of the positions are filled."""


@njit(cache=True)
def _grow(
    own: Store,
    own_end: int,
    past: Store,
    past_end: int,
    weights: Weights,
    max_length: int,
    max_positions: int,
    depth: int,
) -> tuple[Tokens, Floats, Floats, EvidenceKinds, int]:
    tokens, kinds = np.empty(depth, np.int32), np.empty((depth, len(TEXTS)), np.int16)
    confidences, path_confidences = np.empty((2, depth), np.float32)
    tail = min(max_length, own_end)
    context = np.empty(tail + depth, np.int32)
    context[:tail] = own[TOKENS, own_end - tail : own_end]
    texts = _Texts(own, own_end, past, past_end, context, tail, max_length)
    matches = _Matches(
        np.zeros(len(TEXTS), np.int32),
        np.empty((len(TEXTS), max_positions), np.int32),
        np.zeros(len(TEXTS), np.int32),
    )
    followers = np.empty(len(TEXTS) * max_positions, np.int32)
    agree = np.empty((len(followers), len(TEXTS)), np.int32)
    totals = np.zeros(len(TEXTS), np.int32)
    path_confidence, past_position = np.float32(1.0), -1
    for node in range(depth):
        known = 0
        for text in TEXTS:
            known, totals[text] = _count_followers(texts, matches, text, followers, agree, known)
            if totals[text] == 0:
                # At first, or where no match continues: search for the tokens read so far.
                _search(texts, matches, node, text)
                known, totals[text] = _count_followers(
                    texts, matches, text, followers, agree, known
                )
        best, most = -1, 0.0
        for one in range(known):
            # The first of equals: the request's own text before past outputs, and in a text the
            # most recent position.
            own_kind = evidence_kind(matches.length[OWN], agree[one, OWN], totals[OWN])
            past_kind = evidence_kind(matches.length[PAST], agree[one, PAST], totals[PAST])
            confidence = confidence_of(weights, own_kind, past_kind)
            if confidence > most:
                best, most = one, confidence
                kinds[node, OWN], kinds[node, PAST] = own_kind, past_kind
        if best < 0:
            depth = node
            break
        path_confidence = np.float32(path_confidence * most)
        tokens[node] = followers[best]
        confidences[node], path_confidences[node] = most, path_confidence
        _advance(texts, matches, tokens[node])
        context[tail + node] = tokens[node]
        if node == 0 and matches.found[OWN] == 0:
            past_position = matches.positions[PAST, 0] - 1
    return (
        tokens[:depth],
        confidences[:depth],
        path_confidences[:depth],
        kinds[:depth],
        past_position,
    )


@njit(cache=True)
def _count_followers(
    texts: _Texts,
    matches: _Matches,
    text: int,
    followers: Tokens,
    agree: NDArray[np.int32],
    known: int,
) -> tuple[int, int]:
    """Counts by token how many positions of a text continue with it.

    Returns the number of followers known so far, and of positions that continue at all.
    """
    total = 0
    for nth in range(matches.found[text]):
        token = _next_token(texts, matches, text, nth)
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
def _search(texts: _Texts, matches: _Matches, drafted: int, text: int) -> None:
    end = texts.tail + drafted
    recent = texts.context[max(0, end - texts.max_length) : end]
    positions = matches.positions[text]
    if text == OWN:
        length, found = longest_match(texts.own, texts.own_end, recent, texts.max_length, positions)
    else:
        length, found = longest_match(
            texts.past, texts.past_end, recent, texts.max_length, positions
        )
    matches.length[text], matches.found[text] = length, found


@njit(cache=True)
def _next_token(texts: _Texts, matches: _Matches, text: int, nth: int) -> int:
    """The token at a matching position.

    A match that reaches the end of the own text continues in the draft itself, so a text that
    repeats with a short period is drafted to any depth.
    """
    position = matches.positions[text, nth]
    if text == PAST:
        return texts.past[TOKENS, position] if position < texts.past_end else NONE
    beyond = position - texts.own_end
    if beyond < 0:
        return texts.own[TOKENS, position]
    return texts.context[texts.tail + beyond]


@njit(cache=True)
def _advance(texts: _Texts, matches: _Matches, token: int) -> None:
    """Keeps the positions that continue with `token`, and moves them after it."""
    for text in TEXTS:
        matches.length[text] += 1
        found = 0
        for nth in range(matches.found[text]):
            if _next_token(texts, matches, text, nth) == token:
                matches.positions[text, found] = matches.positions[text, nth] + 1
                found += 1
        matches.found[text] = found
