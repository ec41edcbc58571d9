"""What a drafter's confidence is worth: P(accepted | sibling rank, confidence), learned online.

Drafter and target share their noise, so a child's acceptance is not its probability q (DESIGN
4.1), and drafters are over- or under-confident besides. Per rank, confidences fall into bins that
are fine at both ends, where long chains are decided; an isotonic fit through the bins makes the
curve monotone. Memory is a few small arrays per drafter, however long it runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from policies.tree import DraftTree

RANKS = 4
"""Siblings beyond the fourth count as fourth."""
SURVIVAL = RANKS
"""The row behind the ranks: is any of the siblings right, by the sum of their confidences."""
BINS = 16

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CalibrationParams:
    prior: float = 4.0
    """Imaginary observations per bin that say: the confidence is the probability."""
    memory: float = 8192.0
    """Observations per rank that are remembered; beyond them the past fades to half of it."""
    refit_every: int = 64
    """Observations between two fits of the curves."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A monotone map from confidence to probability; small and picklable."""

    confidence: Floats
    probability: Floats

    def __call__(self, confidence: Floats) -> Floats:
        return np.interp(confidence, self.confidence, self.probability)


IDENTITY = Curve(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
"""Takes a drafter at its word."""


class Calibration:
    """Of one drafter. Feed it the drafter's own trees and what was then committed."""

    def __init__(self, params: CalibrationParams | None = None) -> None:
        self._params = params or CalibrationParams()
        self._seen = np.zeros((RANKS + 1, BINS))
        self._accepted = np.zeros((RANKS + 1, BINS))
        self._confidence = np.zeros((RANKS + 1, BINS))
        self._since_fit = 0
        self._curves = self._fit()

    def calibrate(self, trees: Sequence[DraftTree]) -> list[DraftTree]:
        """The same trees with probabilities for confidences; siblings sum to at most 1."""
        siblings = _Siblings.of(trees)
        rank = np.minimum(siblings.rank(), RANKS - 1)
        probability = np.empty_like(siblings.confidence)
        for row in range(RANKS):
            of_rank = rank == row
            probability[of_rank] = self._curves[row](siblings.confidence[of_rank])
        return siblings.with_confidence(trees, probability)

    @property
    def survival(self) -> Curve:
        """P(any of a node's drafted children is right), by the sum of their confidences."""
        return self._curves[SURVIVAL]

    def rank_share(self, rank: int, prior: float, weight: float = 16.0) -> float:
        """How often the sibling of this rank is the right one; `prior` until it was seen."""
        row = min(rank, RANKS - 1)
        accepted, seen = float(self._accepted[row].sum()), float(self._seen[row].sum())
        return (accepted + weight * prior) / (seen + weight)

    def observe(self, drafted: Iterable[tuple[DraftTree, Sequence[int]]]) -> None:
        """Learns from trees as they were drafted and the tokens that were then committed.

        A node is judged when its parent was right and the next committed token is known, whether
        it was verified or not: what selection leaves out cannot bias what is learned.
        """
        pairs = [pair for pair in drafted if len(pair[0]) and len(pair[1])]
        if pairs:
            self._count(*_judge([tree for tree, _ in pairs], [said for _, said in pairs]))

    def _count(
        self, rows: NDArray[np.int64], confidence: Floats, accepted: NDArray[np.bool_]
    ) -> None:
        where = rows * BINS + _bin_of(confidence)
        size = self._seen.size
        for table, weight in (
            (self._seen, np.ones_like(confidence)),
            (self._accepted, accepted.astype(np.float64)),
            (self._confidence, confidence),
        ):
            table += np.bincount(where, weight, size).reshape(table.shape)
        total = np.maximum(self._seen.sum(axis=1, keepdims=True), 1.0)
        fade = np.where(total > self._params.memory, self._params.memory / 2 / total, 1.0)
        for table in (self._seen, self._accepted, self._confidence):
            table *= fade
        self._since_fit += len(rows)
        if self._since_fit >= self._params.refit_every:
            self._since_fit = 0
            self._curves = self._fit()

    def _fit(self) -> list[Curve]:
        prior = self._params.prior
        weight = self._seen + prior
        confidence = (self._confidence + prior * _CENTRES) / weight
        probability = (self._accepted + prior * _CENTRES) / weight
        return [
            Curve(confidence[row], isotonic_regression(probability[row], weights=weight[row]).x)
            for row in range(RANKS + 1)
        ]


def cap_siblings(trees: Sequence[DraftTree]) -> list[DraftTree]:
    """Siblings sum to at most 1 again: after trees of several drafters were merged."""
    siblings = _Siblings.of(trees)
    return siblings.with_confidence(trees, siblings.confidence)


def _bin_of(confidence: Floats) -> NDArray[np.int64]:
    # Equal steps of arcsin √c are narrow in c near 0 and near 1.
    angle = np.arcsin(np.sqrt(np.clip(confidence, 0.0, 1.0))) * (2 / np.pi)
    return np.minimum((angle * BINS).astype(np.int64), BINS - 1)


_CENTRES = np.sin((np.arange(BINS) + 0.5) / BINS * (np.pi / 2)) ** 2


def _judge(
    trees: Sequence[DraftTree], committed: Sequence[Sequence[int]]
) -> tuple[NDArray[np.int64], Floats, NDArray[np.bool_]]:
    """(row, confidence, accepted) of each node whose parent was right and whose truth is known,
    and of the children of each such parent together."""
    siblings = _Siblings.of(trees)
    owner = np.repeat(np.arange(len(trees)), siblings.sizes)
    depth = np.concatenate([tree.depth for tree in trees])
    tokens = np.concatenate([tree.tokens for tree in trees])
    deepest = int(depth.max())
    said = np.full((len(trees), deepest), -1)
    for number, truth in enumerate(committed):
        said[number, : len(truth)] = truth[:deepest]
    right = tokens == said[owner, depth - 1]
    # By group number of its children: whether a node was right. A root, which is no node, is.
    own_group = np.arange(len(owner)) + owner + 1
    followed = np.ones(len(owner) + len(trees), np.bool_)
    for level in range(1, deepest + 1):
        of_level = np.flatnonzero(depth == level)
        right[of_level] &= followed[siblings.group[of_level]]
        followed[own_group[of_level]] = right[of_level]
    known = np.array([len(truth) for truth in committed])[owner] >= depth
    judged = known & followed[siblings.group]
    row = np.minimum(siblings.rank(), RANKS - 1)[judged]
    confidence, accepted = siblings.confidence[judged], right[judged]
    parents, family = np.unique(siblings.group[judged], return_inverse=True)
    return (
        np.concatenate([row, np.full(len(parents), SURVIVAL)]),
        np.concatenate([confidence, np.bincount(family, confidence)]),
        np.concatenate([accepted, np.bincount(family, accepted) > 0]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Siblings:
    """The nodes of many trees in one flat array, with one group number per set of siblings."""

    sizes: list[int]
    confidence: Floats
    group: NDArray[np.int64]

    @classmethod
    def of(cls, trees: Sequence[DraftTree]) -> "_Siblings":
        sizes = [len(tree) for tree in trees]
        if not sum(sizes):
            return cls(sizes, np.zeros(0), np.zeros(0, np.int64))
        # One number more per tree than it has nodes: its root is a parent, too.
        first = np.cumsum([0, *[size + 1 for size in sizes[:-1]]])
        parents = np.concatenate([tree.parents for tree in trees]).astype(np.int64)
        confidence = np.concatenate([tree.confidence for tree in trees]).astype(np.float64)
        return cls(sizes, confidence, parents + 1 + np.repeat(first, sizes))

    def rank(self) -> NDArray[np.int64]:
        """0 for the first sibling in the drafter's order of preference."""
        order = np.argsort(self.group, kind="stable")
        grouped = self.group[order]
        place = np.arange(len(order))
        begins = np.ones(len(order), np.bool_)
        begins[1:] = grouped[1:] != grouped[:-1]
        rank = np.empty_like(place)
        rank[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
        return rank

    def with_confidence(self, trees: Sequence[DraftTree], confidence: Floats) -> list[DraftTree]:
        if not len(confidence):
            return list(trees)
        total = np.bincount(self.group, confidence)
        capped = (confidence / np.maximum(total, 1.0)[self.group]).astype(np.float32)
        ends = np.cumsum(self.sizes).tolist()
        return [
            DraftTree(tree.tokens, tree.parents, tree.depth, capped[end - size : end])
            for tree, size, end in zip(trees, self.sizes, ends, strict=True)
        ]
