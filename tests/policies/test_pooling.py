"""Replicas that pool their statistics decide as one replica with all observations would."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from policies.estimates.calibration import Calibration, CalibrationParams
from policies.pooling import (
    Statistics,
    combine,
    extract,
    finite_vectors,
    scaled,
    split_name,
    weighted_sum,
)
from policies.tree import DraftTree
from tests.policies.tree_lists import calibrated, learn


def summed(*parts: Statistics) -> Statistics:
    return weighted_sum(
        [(arrays, 1.0) for part in parts if (arrays := finite_vectors(part)) is not None]
    )


def test_calibrations_stay_bounded_however_long_replicas_serve_and_pool() -> None:
    """A calibration is at most its memory."""
    observations = drafts(np.sqrt, 500, 0)
    calibrations = Calibration(), Calibration()
    for _ in range(60):
        learn(calibrations[0], observations)
        calibrations[1].pool(calibrations[0].export())
        calibrations[0].pool(calibrations[1].export())
    most = CalibrationParams().memory + len(observations)
    for one_of_both in calibrations:
        seen = np.reshape(one_of_both.export()["seen"], (-1, 16)).sum(axis=1)
        assert seen.max() <= most


def drafts(
    truth: Callable[[float], float], rounds: int, seed: int
) -> list[tuple[DraftTree, Sequence[int]]]:
    """Single drafts, whose confidence c is accepted with probability truth(c)."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(1.2, 0.8, rounds)
    right = rng.random(rounds) < [truth(c) for c in confidence]
    return [
        (DraftTree.chain([1], [c]), [1 if accepted else 2])
        for c, accepted in zip(confidence.tolist(), right.tolist(), strict=True)
    ]


def learned(observations: Sequence[tuple[DraftTree, Sequence[int]]]) -> Calibration:
    calibration = Calibration()
    learn(calibration, observations)
    return calibration


def curve(calibration: Calibration) -> list[float]:
    trees = [DraftTree.chain([1], [c]) for c in np.linspace(0.05, 0.95, 10)]
    return [float(tree.confidence[0]) for tree in calibrated(calibration, trees)]


def test_pooled_calibrations_equal_that_of_all_observations() -> None:
    observations = [drafts(np.sqrt, 900, seed) for seed in range(3)]
    alone = learned([observation for part in observations for observation in part])
    three = [learned(part) for part in observations]
    others_of_each = [summed(*(one.export() for one in three if one is not own)) for own in three]
    for own, others in zip(three, others_of_each, strict=True):
        assert curve(own) != pytest.approx(curve(alone), abs=1e-3)
        own.pool(others)
        assert curve(own) == pytest.approx(curve(alone), abs=1e-6)
        assert own.rank_counts == pytest.approx(alone.rank_counts)


def test_a_calibration_keeps_its_own_share_however_many_others_there_are() -> None:
    """Confidence means much more here than on the thousand other replicas."""
    memory = CalibrationParams().memory
    own = learned(drafts(lambda _: 0.9, int(memory), 0))
    others = learned(drafts(lambda _: 0.1, int(memory), 1))
    own.pool(scaled(others.export(), 1000.0))
    assert curve(own)[5] > 0.25


def test_statistics_with_other_bins_are_ignored() -> None:
    own = learned(drafts(np.sqrt, 900, 0))
    before = curve(own)
    own.pool({name: vector[:-5] for name, vector in own.export().items()})
    assert curve(own) == before


def test_combined_statistics_are_extracted_unchanged() -> None:
    parts = {"lbss": {"drafter/a": [1.0, 2.0]}, "calibration/a": {"seen": [3.0]}, "none": {}}
    flat = combine(parts)
    assert {name: extract(flat, name) for name in parts} == parts
    assert {split_name(name) for name in flat} == {
        ("lbss", "drafter/a"),
        ("calibration/a", "seen"),
    }


def test_weighted_sums_are_by_name() -> None:
    parts = [
        ({"x": np.array([1.0, 2.0])}, 1.0),
        ({"x": np.array([4.0, 4.0]), "y": np.ones(1)}, 0.5),
    ]
    assert weighted_sum(parts) == {"x": [3.0, 4.0], "y": [0.5]}
    assert parts[0][0]["x"].tolist() == [1.0, 2.0], "the summands are not changed"
    # A replica of another version may use other bins.
    assert weighted_sum([*parts, ({"x": np.ones(3)}, 1.0)]) == {"x": [3.0, 4.0], "y": [0.5]}


def test_statistics_that_are_not_finite_are_refused() -> None:
    assert finite_vectors({"x": [1.0], "y": [float("nan")]}) is None
    assert finite_vectors({"x": [float("inf")]}) is None
