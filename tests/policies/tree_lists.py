"""Flat-tree functions on lists of trees."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from policies.estimates.calibration import Calibration
from policies.flat_trees import Floats, flatten, merge_each, path_confidences, split
from policies.tree import DraftTree

Sources = NDArray[np.int64]


def learn(
    calibration: Calibration, observations: Iterable[tuple[DraftTree, Sequence[int]]]
) -> None:
    """Observes uncalibrated trees, each with the tokens that were committed after it."""
    pairs = list(observations)
    calibration.observe(flatten([tree for tree, _ in pairs]), [tokens for _, tokens in pairs])


def calibrated(calibration: Calibration, trees: Sequence[DraftTree]) -> list[DraftTree]:
    return split(calibration.calibrate(flatten(trees)))


def path_confidence(tree: DraftTree) -> Floats:
    return path_confidences(flatten([tree]))


def merged_each(proposed: Sequence[Sequence[DraftTree]]) -> list[tuple[DraftTree, Sources]]:
    """Each request's merged tree, and the sources of its nodes."""
    parts = [len(trees) for trees in proposed]
    merged = merge_each(parts, flatten([tree for trees in proposed for tree in trees]))
    sources = np.split(merged.sources, merged.trees.starts[1:-1])
    return list(zip(split(merged.trees), sources, strict=False))
