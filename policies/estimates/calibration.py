"""Calibrates a drafter's confidences: P(accepted | sibling rank, confidence), learned online.

Drafter and target share their Gumbel noise (docs/architecture.md, "Drafter-invariant sampling"), so
a child's acceptance is not its probability q, and drafters are over- or under-confident besides.
For each rank, confidences are counted in bins that are narrow near 0 and 1, where long chains
differ; an isotonic fit through the bins makes the curve monotone. Memory is constant: a few small
arrays per drafter.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.flat_trees import FlatTrees, cap_siblings

RANKS = 4
"""Siblings beyond the fourth are counted as fourth."""
SURVIVAL = RANKS
"""The row after those of the ranks: whether any of a node's children is right, by the sum of their
confidences."""
BINS = 16
_PRIOR = 4.0
"""Observations per bin that the prior counts for; it takes confidence for probability."""
_MEMORY = 8192.0
"""The most observations of a rank; beyond them all of its counts are halved."""
_REFIT_EVERY = 64
"""The fewest observations between two fits of the curves."""
_REFIT_SHARE = 0.02
"""The same as a share of all observations remembered: fewer would hardly move the curves."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Curve(NamedTuple):
    """A monotone map from confidence to probability; small and picklable."""

    confidence: Floats
    probability: Floats

    def __call__(self, confidence: Floats) -> Floats:
        return np.interp(confidence, self.confidence, self.probability)


IDENTITY = Curve(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
"""Confidence is the probability."""


class Counts(NamedTuple):
    """Observed nodes, with a row for each rank and one for survival, and a column for each bin."""

    seen: Floats
    accepted: Floats
    confidence: Floats
    """The sum of the nodes' confidences."""


class Calibration:
    """The calibration of one drafter, from its trees and the tokens that were then committed."""

    def __init__(self) -> None:
        self._counts = Counts(*(np.zeros((RANKS + 1, BINS)) for _ in Counts._fields))
        self._since_fit = 0
        self._fitted_to = np.full((RANKS + 1, BINS), np.nan)
        """The `seen` counts to which the present curves were fitted."""
        self._curves = np.tile(_CENTRES, (2, RANKS + 1, 1))
        """[confidence or probability, rank or survival, bin]."""
        self._count_ranks()
        self._fit()

    def calibrate(self, trees: FlatTrees) -> FlatTrees:
        """The same trees with calibrated confidences, scaled so that siblings sum to at most 1."""
        starts, tokens, parents, depth, confidence = trees
        probability = _calibrated(starts, parents, confidence, self._curves)
        return FlatTrees(starts, tokens, parents, depth, probability)

    def observe(self, drafted: FlatTrees, committed: Sequence[Sequence[int]]) -> None:
        """Learns from uncalibrated trees and the tokens that were committed after them.

        A node is counted when its parent was right and the committed token at its position is
        known, whether it was verified or not, so that the selection of nodes cannot bias the
        calibration.
        """
        lengths = np.array([len(tokens) for tokens in committed], np.int64)
        all_tokens = np.array([*chain.from_iterable(committed)], np.int64)
        counted, most = _learn(drafted, all_tokens, lengths, self._counts)
        self._count_ranks()
        self._since_fit += counted
        if self._since_fit >= max(_REFIT_EVERY, _REFIT_SHARE * most):
            self._fit()

    def _count_ranks(self) -> None:
        # Precomputed, because the planner reads it in every round.
        seen, accepted, _ = self._counts
        self.rank_counts = np.stack(
            [seen[:RANKS].sum(axis=1), accepted[:RANKS].sum(axis=1)], axis=1
        )
        """[rank, 0 or 1]: siblings of this rank that were counted, and that were right."""

    def _fit(self) -> None:
        """Refits the curves with new observations: with chains, two of the five."""
        self._since_fit = 0
        self._curves = _fitted(self._counts, self._fitted_to, self._curves)
        self.survival = Curve(*self._curves[:, SURVIVAL])
        """P(any of a node's drafted children is right), by the sum of their confidences."""
        self.chain = Curve(*self._curves[:, 0])
        """P(a node is right given its parent), for the first child: so for a chain's nodes."""


_CENTRES = np.sin((np.arange(BINS) + 0.5) / BINS * (np.pi / 2)) ** 2
"""The confidence in the middle of each bin."""

NO_RANK_COUNTS = np.zeros((RANKS, 2))
"""The `rank_counts` of a drafter without observations."""
_RANK_PRIOR = 16.0
"""Siblings that the prior of `rank_acceptance` counts for."""


@njit(cache=True)
def rank_acceptance(rank_counts: Floats, rank: int, prior: float) -> float:
    """How often siblings of this rank are right, shrunk towards `prior`."""
    seen, accepted = rank_counts[min(rank, RANKS - 1)]
    return (accepted + _RANK_PRIOR * prior) / (seen + _RANK_PRIOR)


@njit(cache=True)
def _calibrated(
    starts: Ints, parents: NDArray[np.int32], confidence: NDArray[np.float32], curves: Floats
) -> NDArray[np.float32]:
    calibrated = np.empty_like(confidence)
    siblings = np.empty(len(confidence) + 1, np.int64)
    for tree in range(len(starts) - 1):
        begin, end = starts[tree], starts[tree + 1]
        siblings[: end - begin + 1] = 0
        for node in range(begin, end):
            rank = min(siblings[parents[node] + 1], RANKS - 1)
            siblings[parents[node] + 1] += 1
            calibrated[node] = interpolate(curves[0, rank], curves[1, rank], confidence[node])
        cap_siblings(parents[begin:end], calibrated[begin:end])
    return calibrated


@njit(cache=True)
def _fitted(counts: Counts, fitted_to: Floats, before: Floats) -> Floats:
    """The curves, refitted in rows whose `seen` differs from `fitted_to`, which is updated."""
    curves = before.copy()
    for row in range(RANKS + 1):
        if (counts.seen[row] == fitted_to[row]).all():
            continue
        weight = counts.seen[row] + _PRIOR
        curves[0, row] = (counts.confidence[row] + _PRIOR * _CENTRES) / weight
        share = (counts.accepted[row] + _PRIOR * _CENTRES) / weight
        curves[1, row] = isotonic(share, weight)
        fitted_to[row] = counts.seen[row]
    return curves


@njit(cache=True)
def isotonic(values: Floats, weight: Floats) -> Floats:
    """The non-decreasing sequence with the least weighted squared error, by pooling adjacent
    violators. scipy's isotonic_regression, which gives the same, takes ten times as long to check
    its input."""
    level, mass, begin = values.copy(), weight.copy(), np.arange(len(values) + 1)
    blocks = 0
    for at in range(len(values)):
        level[blocks], mass[blocks], begin[blocks] = values[at], weight[at], at
        while blocks > 0 and level[blocks - 1] >= level[blocks]:
            total = level[blocks - 1] * mass[blocks - 1] + level[blocks] * mass[blocks]
            mass[blocks - 1] += mass[blocks]
            blocks -= 1
            level[blocks] = total / mass[blocks]
        blocks += 1
    begin[blocks] = len(values)
    fitted = np.empty_like(level)
    for block in range(blocks):
        fitted[begin[block] : begin[block + 1]] = level[block]
    return fitted


@njit(cache=True)
def interpolate(xs: Floats, ys: Floats, x: float) -> float:
    """np.interp of a single point, without its preparation for many."""
    after = np.searchsorted(xs, x)
    if after == 0:
        return ys[0]
    if after == len(xs):
        return ys[-1]
    share = (x - xs[after - 1]) / (xs[after] - xs[after - 1])
    return ys[after - 1] + share * (ys[after] - ys[after - 1])


@njit(cache=True)
def _learn(flat: FlatTrees, committed: Ints, lengths: Ints, counts: Counts) -> tuple[int, float]:
    """Adds the trees to the counts and halves full rows. Returns the number of new observations,
    and the largest number of observations that a row had before halving."""
    counted, most = _count_trees(flat, committed, lengths, counts), 0.0
    for row in range(RANKS + 1):
        total = counts.seen[row].sum()
        most = max(most, total)
        if total > _MEMORY:
            for table in counts:
                table[row] *= _MEMORY / 2 / total
    return counted, most


@njit(cache=True)
def _count_trees(flat: FlatTrees, committed: Ints, lengths: Ints, counts: Counts) -> int:
    """Counts each node whose parent was right and whose position has a committed token, and, as one
    observation of survival, the children of each such parent. `committed`: the tokens of all
    trees, one tree after the other; `lengths`: how many each tree has."""
    counted, first_token = 0, 0
    # Indexed by parent + 1, the root at 0: whether the node was right and how many children it has
    # so far; of the children that count, the sum of confidences and whether any was right.
    most = len(flat.tokens) + 1
    right_path, children = np.empty(most, np.bool_), np.empty(most, np.int64)
    mass, survives = np.empty(most), np.empty(most, np.bool_)
    for t in range(len(lengths)):
        begin, nodes = flat.starts[t], flat.starts[t + 1] - flat.starts[t]
        for parent in range(nodes + 1):
            right_path[parent], children[parent] = parent == 0, 0
            mass[parent], survives[parent] = -1.0, False
        for node in range(nodes):
            at = begin + node
            parent, depth = flat.parents[at] + 1, flat.depth[at]
            rank = min(children[parent], RANKS - 1)
            children[parent] += 1
            if right_path[parent] and depth <= lengths[t]:
                right = flat.tokens[at] == committed[first_token + depth - 1]
                right_path[node + 1] = right
                mass[parent] = max(mass[parent], 0.0) + flat.confidence[at]
                survives[parent] |= right
                _count(counts, rank, flat.confidence[at], right)
                counted += 1
        for parent in range(nodes + 1):
            if mass[parent] >= 0.0:
                _count(counts, SURVIVAL, mass[parent], survives[parent])
                counted += 1
        first_token += lengths[t]
    return counted


@njit(cache=True)
def _count(counts: Counts, row: int, confidence: float, right: bool) -> None:
    # Bins of equal width in arcsin √c are narrow in c near 0 and near 1.
    angle = np.arcsin(np.sqrt(min(max(confidence, 0.0), 1.0))) * (2 / np.pi)
    column = min(int(angle * BINS), BINS - 1)
    counts.seen[row, column] += 1.0
    counts.accepted[row, column] += right
    counts.confidence[row, column] += confidence
