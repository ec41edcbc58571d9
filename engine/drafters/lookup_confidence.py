"""Confidence of tokens that a lookup finds, learned online from which of them were committed.

A lookup searches two texts: the request's own, and past outputs. For a candidate token each text
gives a kind of evidence: how long its match is, at how many positions, and what share of those
positions continue with the token. Each kind has a weight per text, and the confidence is the
logistic function of the two weights' sum (logistic mixing, as in the PAQ context mixers). When
committed tokens show which candidates were right, one step of gradient descent on the log loss
moves their weights. Fixed confidences would not do: under one workload a match of two tokens is
right half the time, under another hardly ever.
"""

from collections.abc import Sequence
from functools import cache
from math import exp, log
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from engine.drafters.text_index import Tokens

TEXTS = OWN, PAST = 0, 1
EvidenceKinds = NDArray[np.int16]
"""Kind of evidence by [node, text]."""
Weights = NDArray[np.float64]
"""[text, kind of evidence, (weight, number of updates)]."""

_MAX_LENGTH = 9
"""Longer matches count as this long; length 0 is no match."""
_COUNT_CLASSES = 4
"""Classes of the number of matching positions: 1, 2, 3 to 4, more."""
_SHARE_CLASSES = 6
"""Classes of the share of those positions that continue with the token: 0, up to 1/3, up to 1/2,
up to 2/3, below 1, 1."""
NO_EVIDENCE = 0
_KINDS = (_MAX_LENGTH + 1) * _COUNT_CLASSES * _SHARE_CLASSES
_PRIOR_DOUBT = 2.0
"""The initial confidence, where `agree` of `total` positions that match in `length` tokens continue
with the token, is agree / (total + _PRIOR_DOUBT / length)."""
_MIN_INITIAL_CONFIDENCE = 0.2
"""The least initial confidence, also where a text's matches continue with other tokens."""
_FIRST_STEP, _MIN_STEP = 2.0, 0.04
"""Step sizes of the gradient descent; the least one keeps following a changing workload."""
_STEP_HALF_LIFE = 4.0
"""Updates of a kind after which its step is half of the first one."""


def initial_weights() -> Weights:
    return _initial_weights().copy()


@cache
def _initial_weights() -> Weights:
    weights = np.zeros((len(TEXTS), _KINDS, 2))
    for length in range(1, _MAX_LENGTH + 1):
        for total in (1, 2, 4, 8):
            for agree in range(total + 1):
                confidence = max(agree / (total + _PRIOR_DOUBT / length), _MIN_INITIAL_CONFIDENCE)
                weights[:, evidence_kind(length, agree, total), 0] = log(
                    confidence / (1.0 - confidence)
                )
    return weights


class _Proposal(NamedTuple):
    base: int
    """The number of committed tokens that the chain continues."""
    tokens: Tokens
    kinds: EvidenceKinds


class LookupCalibration:
    """The weights of one lookup drafter for one tenant, updated by all of its requests."""

    def __init__(self) -> None:
        self.weights = initial_weights()
        self._proposals: dict[str, _Proposal] = {}
        """The latest proposal of each request."""

    def record(self, request: str, base: int, tokens: Tokens, kinds: EvidenceKinds) -> None:
        """Keeps the chain proposed after `base` committed tokens, before the policy cuts it."""
        self._proposals[request] = _Proposal(base, tokens, kinds)

    def update(self, request: str, committed: Sequence[int], unchanged: int) -> None:
        """Compares the latest proposal with the tokens that were committed after its base.

        The first `unchanged` of the committed tokens are as they were at the last order; a
        proposal after tokens that have been rewritten is dropped.
        """
        proposal = self._proposals.pop(request, None)
        if proposal is not None and len(proposal.tokens) and proposal.base <= unchanged:
            end = proposal.base + len(proposal.tokens)
            following = np.array(committed[proposal.base : end], np.int32)
            update_weights(self.weights, proposal.tokens, proposal.kinds, following)

    def forget(self, request: str) -> None:
        self._proposals.pop(request, None)


@njit(cache=True)
def evidence_kind(length: int, agree: int, total: int) -> int:
    """The kind of evidence where `agree` of `total` positions, each matching in `length` tokens,
    continue with the token."""
    if length == 0 or total == 0:
        return NO_EVIDENCE
    count = 0 if total == 1 else 1 if total == 2 else 2 if total < 5 else 3
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
    return (min(length, _MAX_LENGTH) * _COUNT_CLASSES + count) * _SHARE_CLASSES + share


@njit(cache=True)
def confidence_of(weights: Weights, own: int, past: int) -> float:
    """The confidence of a token with these kinds of evidence in the two texts."""
    return 1.0 / (1.0 + exp(-(weights[OWN, own, 0] + weights[PAST, past, 0])))


@njit(cache=True)
def update_weights(
    weights: Weights, tokens: Tokens, kinds: EvidenceKinds, following: Tokens
) -> None:
    """One gradient step for each token up to the first wrong one, whether or not it was verified.

    `following` are the tokens that were committed after the chain's root.
    """
    for node in range(min(len(tokens), len(following))):
        right = tokens[node] == following[node]
        own, past = kinds[node]
        error = (1.0 if right else 0.0) - confidence_of(weights, own, past)
        for text, kind in ((OWN, own), (PAST, past)):
            weight = weights[text, kind]
            step = max(_FIRST_STEP / (1.0 + weight[1] / _STEP_HALF_LIFE), _MIN_STEP)
            weight[0] += step * error
            weight[1] += 1.0
        if not right:
            return
