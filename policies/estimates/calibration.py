"""What a drafter's confidence is worth: P(accepted | sibling rank, confidence), learned online.

Drafter and target share their noise, so a child's acceptance is not its probability q (DESIGN
4.1), and drafters are over- or under-confident besides. Per rank, confidences fall into bins that
are fine at both ends, where long chains are decided; an isotonic fit through the bins makes the
curve monotone. Memory is a few small arrays per drafter, however long it runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.flat_trees import FlatTrees, cap_siblings
from policies.pooling import Statistics

RANKS = 4
"""Siblings beyond the fourth count as fourth."""
SURVIVAL = RANKS
"""The row behind the ranks: is any of the siblings right, by the sum of their confidences."""
BINS = 16

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CalibrationParams:
    prior: float = 4.0
    """Imaginary observations per bin that say: the confidence is the probability."""
    memory: float = 8192.0
    """Observations per rank that are remembered; beyond them the past fades to half of it."""
    refit_every: int = 64
    """Observations between two fits of the curves."""
    refit_share: float = 0.02
    """The same, as a share of all that is remembered: fewer would hardly move the curves."""


class Curve(NamedTuple):
    """A monotone map from confidence to probability; small and picklable."""

    confidence: Floats
    probability: Floats

    def __call__(self, confidence: Floats) -> Floats:
        return np.interp(confidence, self.confidence, self.probability)


IDENTITY = Curve(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
"""Takes a drafter at its word."""


class Counts(NamedTuple):
    """Of what was judged, a row for each rank and one for survival, a column for each bin."""

    seen: Floats
    accepted: Floats
    confidence: Floats
    """Summed up."""


class Calibration:
    """Of one drafter. Feed it the drafter's own trees and what was then committed."""

    def __init__(self, params: CalibrationParams | None = None) -> None:
        self._params = params or CalibrationParams()
        self._counts = _no_counts()
        self._others = _no_counts()
        """Of other replicas' drafters."""
        self._since_fit = 0
        self._fitted_to = np.full((RANKS + 1, BINS), np.nan)
        """What had been seen, by everyone, when the curves were fitted."""
        self._curves = np.tile(_CENTRES, (2, RANKS + 1, 1))
        """Confidence and probability of the curve of each rank, and of survival."""
        self._add_up()
        self._fit()

    def calibrate(self, trees: FlatTrees) -> FlatTrees:
        """The same trees with probabilities for confidences; siblings sum to at most 1."""
        starts, tokens, parents, depth, confidence = trees
        probability = _calibrated(starts, parents, confidence, self._curves)
        return FlatTrees(starts, tokens, parents, depth, probability)

    def observe(self, drafted: FlatTrees, committed: Sequence[Sequence[int]]) -> None:
        """Learns from trees as they were drafted and the tokens that were then committed.

        A node is judged when its parent was right and the next committed token is known, whether
        it was verified or not: what selection leaves out cannot bias what is learned.
        """
        known = np.array([len(said) for said in committed], np.int64)
        said = np.array([*chain.from_iterable(committed)], np.int64)
        judged, most = _learn(drafted, said, known, self._counts, self._params.memory)
        self._add_up()
        self._since_fit += judged
        least = max(self._params.refit_every, self._params.refit_share * most)
        if self._since_fit >= least:
            self._fit()

    def export(self) -> Statistics:
        return {name: table.ravel().tolist() for name, table in self._counts._asdict().items()}

    def pool(self, others: Statistics) -> None:
        """They count for as much as we remember ourselves at most: what is seen here is about
        the requests that come here."""
        self._others = _no_counts()
        shape, size = self._others.seen.shape, self._others.seen.size
        if all(len(others.get(name, ())) == size for name in Counts._fields):
            told = Counts(*(np.reshape(others[name], shape) for name in Counts._fields))
            total = told.seen.sum(axis=1, keepdims=True)
            share = np.minimum(1.0, self._params.memory / np.maximum(total, 1.0))
            self._others = Counts(*(share * table for table in told))
        self._add_up()
        self._fitted_to[:] = np.nan  # others may differ in what was accepted alone
        self._fit()

    def _add_up(self) -> None:
        """What a plan asks for in every round."""
        self.ranks = _siblings_judged(self._counts, self._others)
        """Of siblings of each rank, how many were judged and how many were the right one."""

    def _everyones(self) -> Counts:
        return Counts(*(own + told for own, told in zip(self._counts, self._others, strict=True)))

    def _fit(self) -> None:
        """Anew only the curves of which more has been seen: of chains, two of five."""
        self._since_fit = 0
        self._curves = _fitted(self._everyones(), self._params.prior, self._fitted_to, self._curves)
        self.survival = Curve(*self._curves[:, SURVIVAL])
        """P(any of a node's drafted children is right), by the sum of their confidences."""


def _no_counts() -> Counts:
    return Counts(*(np.zeros((RANKS + 1, BINS)) for _ in Counts._fields))


_CENTRES = np.sin((np.arange(BINS) + 0.5) / BINS * (np.pi / 2)) ** 2


NO_RANKS = np.zeros((RANKS, 2))
"""Of a drafter of whom no sibling was judged."""
_RANK_PRIOR = 16.0
"""Siblings that a prior counts for."""


@njit(cache=True)
def share_of_rank(ranks: Floats, rank: int, prior: float) -> float:
    """How often the sibling of this rank is the right one; `prior` until it was seen."""
    seen, accepted = ranks[min(rank, RANKS - 1)]
    return (accepted + _RANK_PRIOR * prior) / (seen + _RANK_PRIOR)


@njit(cache=True)
def _calibrated(
    starts: Ints, parents: NDArray[np.int32], confidence: NDArray[np.float32], curves: Floats
) -> NDArray[np.float32]:
    told = np.empty_like(confidence)
    siblings = np.empty(len(confidence) + 1, np.int64)
    for tree in range(len(starts) - 1):
        begin, end = starts[tree], starts[tree + 1]
        siblings[: end - begin + 1] = 0
        for node in range(begin, end):
            rank = min(siblings[parents[node] + 1], RANKS - 1)
            siblings[parents[node] + 1] += 1
            told[node] = interpolated(curves[0, rank], curves[1, rank], confidence[node])
        cap_siblings(parents[begin:end], told[begin:end])
    return told


@njit(cache=True)
def _fitted(counts: Counts, prior: float, fitted_to: Floats, before: Floats) -> Floats:
    """The curves, anew where more has been seen than `fitted_to`, which is brought up to date."""
    curves = before.copy()
    for row in range(RANKS + 1):
        if (counts.seen[row] == fitted_to[row]).all():
            continue
        weight = counts.seen[row] + prior
        curves[0, row] = (counts.confidence[row] + prior * _CENTRES) / weight
        share = (counts.accepted[row] + prior * _CENTRES) / weight
        curves[1, row] = isotonic(share, weight)
        fitted_to[row] = counts.seen[row]
    return curves


@njit(cache=True)
def isotonic(told: Floats, weight: Floats) -> Floats:
    """The rising curve with the least weighted squared error: neighbours that fall are pooled.
    To the bit scipy's isotonic_regression, whose checks take ten times as long."""
    fitted, weights = told.copy(), weight.copy()
    begins = np.zeros(len(told) + 1, np.int64)
    begins[1] = 1
    block, at = 0, 1
    while at < len(told):
        level, mass, total = told[at], weight[at], 0.0
        if fitted[block] >= level:
            total = weights[block] * fitted[block] + mass * level
            mass += weights[block]
            level = total / mass
            while at < len(told) - 1 and level >= told[at + 1]:
                at += 1
                total += weight[at] * told[at]
                mass += weight[at]
                level = total / mass
            while block > 0 and fitted[block - 1] >= level:
                block -= 1
                total += weights[block] * fitted[block]
                mass += weights[block]
                level = total / mass
        else:
            block += 1
        fitted[block], weights[block] = level, mass
        at += 1
        begins[block + 1] = at
    end = len(told)
    for number in range(block, -1, -1):
        fitted[begins[number] : end] = fitted[number]
        end = begins[number]
    return fitted


@njit(cache=True)
def interpolated(known: Floats, told: Floats, confidence: float) -> float:
    """As np.interp, which prepares for many points each time."""
    after = np.searchsorted(known, confidence)
    if after == 0:
        return told[0]
    if after == len(known):
        return told[-1]
    share = (confidence - known[after - 1]) / (known[after] - known[after - 1])
    return told[after - 1] + share * (told[after] - told[after - 1])


@njit(cache=True)
def _siblings_judged(own: Counts, others: Counts) -> Floats:
    ranks = np.empty((RANKS, 2))
    for rank in range(RANKS):
        ranks[rank, 0] = own.seen[rank].sum() + others.seen[rank].sum()
        ranks[rank, 1] = own.accepted[rank].sum() + others.accepted[rank].sum()
    return ranks


@njit(cache=True)
def _learn(
    flat: FlatTrees, said: Ints, known: Ints, counts: Counts, memory: float
) -> tuple[int, float]:
    """Judges the trees. How many nodes could be, and what the fullest row had seen by then."""
    judged, most = _judge(flat, said, known, counts), 0.0
    for row in range(RANKS + 1):
        total = counts.seen[row].sum()
        most = max(most, total)
        if total > memory:
            for table in counts:
                table[row] *= memory / 2 / total
    return judged, most


@njit(cache=True)
def _judge(flat: FlatTrees, said: Ints, known: Ints, counts: Counts) -> int:
    """Counts each node whose parent was right and whose truth is known, and as one the children
    of each such parent. `said`: the committed tokens of all trees, `known` of each."""
    judged, said_from = 0, 0
    # By parent, the root first: whether it was right, its children so far; of judged ones, their
    # confidence together and whether one of them was right.
    most = len(flat.tokens) + 1
    followed, children = np.empty(most, np.bool_), np.empty(most, np.int64)
    mass, survives = np.empty(most), np.empty(most, np.bool_)
    for t in range(len(known)):
        begin, nodes = flat.starts[t], flat.starts[t + 1] - flat.starts[t]
        for parent in range(nodes + 1):
            followed[parent], children[parent] = parent == 0, 0
            mass[parent], survives[parent] = -1.0, False
        for node in range(nodes):
            at = begin + node
            parent, depth = flat.parents[at] + 1, flat.depth[at]
            rank = min(children[parent], RANKS - 1)
            children[parent] += 1
            if followed[parent] and depth <= known[t]:
                right = flat.tokens[at] == said[said_from + depth - 1]
                followed[node + 1] = right
                mass[parent] = max(mass[parent], 0.0) + flat.confidence[at]
                survives[parent] |= right
                _count(counts, rank, flat.confidence[at], right)
                judged += 1
        for parent in range(nodes + 1):
            if mass[parent] >= 0.0:
                _count(counts, SURVIVAL, mass[parent], survives[parent])
                judged += 1
        said_from += known[t]
    return judged


@njit(cache=True)
def _count(counts: Counts, row: int, confidence: float, right: bool) -> None:
    # Equal steps of arcsin √c are narrow in c near 0 and near 1.
    angle = np.arcsin(np.sqrt(min(max(confidence, 0.0), 1.0))) * (2 / np.pi)
    column = min(int(angle * BINS), BINS - 1)
    counts.seen[row, column] += 1.0
    counts.accepted[row, column] += right
    counts.confidence[row, column] += confidence
