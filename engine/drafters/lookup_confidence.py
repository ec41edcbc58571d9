"""How far a lookup believes what it finds, learned from what became of it.

What two texts say of a token is evidence: how long their matches are, at how many places, and how
many of those go on with it. Each kind of evidence has a weight, and belief is the logistic function
of their sum, as context mixers have it (PAQ): two texts that agree are believed more than each of
them, and one that contradicts takes away. Whenever committed tokens show who was right, a step of
gradient descent on the log loss moves the weights. A guess made once and for all would not do: in
one load a match of two tokens is right half the time, in another hardly ever.
"""

from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.drafters.text_index import Tokens
from policies.tree import ROOT, DraftTree

TEXTS = OWN, PAST = 0, 1
Kinds = NDArray[np.int16]
"""Of evidence, [node, text]."""
Weights = NDArray[np.float64]
"""[text, kind of evidence, (weight, how often it was judged)]."""

_LONGEST = 9
"""Longer matches are alike. 0: nothing was found."""
_PLACES = 4
"""One place, two, up to four, more."""
_SHARES = 6
"""Of the places: none goes on with the token, up to a third, half, two thirds, more, all do."""
NO_EVIDENCE = 0
_KINDS = (_LONGEST + 1) * _PLACES * _SHARES
_DOUBT = 2.0
"""What is believed before anything was judged: `agree` of `total` places that match in `length`
tokens are agree / (total + _DOUBT / length)."""
_LEAST_BELIEF = 0.2
"""Then, of a text that contradicts."""
_FIRST_STEP, _LEAST_STEP = 2.0, 0.04
_STEP_FADES = 4.0
"""Judgements after which a kind's step is half the first one; the least one follows other loads."""


def first_weights() -> Weights:
    weights = np.zeros((len(TEXTS), _KINDS, 2))
    for length in range(1, _LONGEST + 1):
        for total in (1, 2, 4, 8):
            for agree in range(total + 1):
                belief = max(agree / (total + _DOUBT / length), _LEAST_BELIEF)
                weights[:, kind_of(length, agree, total), 0] = log(belief / (1.0 - belief))
    return weights


class _Told(NamedTuple):
    at: int
    """Behind so many committed tokens."""
    tree: DraftTree
    kinds: Kinds


class Experience:
    """Of one lookup, with all of its requests."""

    def __init__(self) -> None:
        self.weights = first_weights()
        self._told: dict[str, _Told] = {}
        """By request, what was proposed last."""

    def note(self, request: str, at: int, tree: DraftTree, kinds: Kinds) -> None:
        """What is proposed behind its first `at` tokens, before anything of it is cut off."""
        self._told[request] = _Told(at, tree, kinds)

    def learn(self, request: str, text: Sequence[int], unchanged: int) -> None:
        """The request is `text` now, of which the first `unchanged` tokens are as they were."""
        told = self._told.pop(request, None)
        if told is not None and len(told.tree) and told.at <= unchanged:
            said = np.array(text[told.at : told.at + int(told.tree.depth[-1])], np.int32)
            judge(self.weights, told.tree.tokens, told.tree.parents, told.kinds, said)

    def forget(self, request: str) -> None:
        self._told.pop(request, None)


@njit(cache=True)
def kind_of(length: int, agree: int, total: int) -> int:
    """Of a text's evidence for a token, which `agree` of its `total` places go on with."""
    if length == 0 or total == 0:
        return NO_EVIDENCE
    places = 0 if total == 1 else 1 if total == 2 else 2 if total < 5 else 3
    if agree == total:
        share = 5
    elif 3 * agree > 2 * total:
        share = 4
    elif 2 * agree > total:
        share = 3
    elif 3 * agree > total:
        share = 2
    else:
        share = 1 if agree > 0 else 0
    return (min(length, _LONGEST) * _PLACES + places) * _SHARES + share


@njit(cache=True)
def believe(weights: Weights, own: int, past: int) -> float:
    """In a token, for which there is this kind of evidence."""
    return 1.0 / (1.0 + exp(-(weights[OWN, own, 0] + weights[PAST, past, 0])))


@njit(cache=True)
def judge(weights: Weights, tokens: Tokens, parents: Tokens, kinds: Kinds, said: Tokens) -> None:
    """`said` is what was committed where the tree began. All nodes whose parents were right have
    had their say, whether or not they were verified."""
    right = np.zeros(len(tokens), np.bool_)
    depth = np.zeros(len(tokens), np.int64)
    for node in range(len(tokens)):
        parent = parents[node]
        if parent != ROOT:
            if not right[parent]:
                continue
            depth[node] = depth[parent] + 1
        if depth[node] >= len(said):
            continue
        right[node] = tokens[node] == said[depth[node]]
        own, past = kinds[node]
        surprise = (1.0 if right[node] else 0.0) - believe(weights, own, past)
        for text, kind in ((OWN, own), (PAST, past)):
            weight = weights[text, kind]
            step = max(_FIRST_STEP / (1.0 + weight[1] / _STEP_FADES), _LEAST_STEP)
            weight[0] += step * surprise
            weight[1] += 1.0
