"""Lists of trees for what takes them flat."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from policies.estimates.calibration import Calibration
from policies.flat_trees import flatten, merge_each, split
from policies.tree import DraftTree

Sources = NDArray[np.int64]


def learn(calibration: Calibration, lessons: Iterable[tuple[DraftTree, Sequence[int]]]) -> None:
    """Trees as they were drafted and what was then committed."""
    pairs = list(lessons)
    calibration.observe(flatten([tree for tree, _ in pairs]), [said for _, said in pairs])


def calibrated(calibration: Calibration, trees: Sequence[DraftTree]) -> list[DraftTree]:
    return split(calibration.calibrate(flatten(trees)))


def merged_each(proposed: Sequence[Sequence[DraftTree]]) -> list[tuple[DraftTree, Sources]]:
    """Of each request the united tree, and who has proposed its nodes."""
    parts = [len(trees) for trees in proposed]
    merged = merge_each(parts, flatten([tree for trees in proposed for tree in trees]))
    sources = np.split(merged.sources, merged.trees.starts[1:-1])
    return list(zip(split(merged.trees), sources, strict=False))
