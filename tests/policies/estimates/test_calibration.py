"""Calibration maps any drafter's confidences to probabilities of acceptance."""

import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from policies.estimates.calibration import Calibration, isotonic, rank_acceptance
from policies.tree import ROOT, DraftTree
from tests.policies.test_tree import trees
from tests.policies.tree_lists import calibrated, learn, merged_each


def observe_drafts(
    calibration: Calibration, truth: Callable[[float], float], rounds: int = 8000, seed: int = 0
) -> None:
    """Single drafts, whose confidence c is accepted with probability truth(c)."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(1.2, 0.8, rounds)
    right = rng.random(rounds) < [truth(c) for c in confidence]
    for begin in range(0, rounds, 50):
        learn(
            calibration,
            [
                (DraftTree.chain([1], [confidence[at]]), [1 if right[at] else 2])
                for at in range(begin, begin + 50)
            ],
        )


def of_chain(calibration: Calibration, confidence: Sequence[float]) -> list[float]:
    single = [DraftTree.chain([1], [c]) for c in confidence]
    return [float(tree.confidence[0]) for tree in calibrated(calibration, single)]


@pytest.mark.parametrize(
    "truth", [np.sqrt, np.square, lambda c: 0.3 + 0.4 * c], ids=["under", "over", "flat"]
)
def test_learns_the_acceptance_of_each_confidence(truth: Callable[[float], float]) -> None:
    calibration = Calibration()
    observe_drafts(calibration, truth)
    confidences = [0.2, 0.4, 0.6, 0.8, 0.95]
    assert of_chain(calibration, confidences) == pytest.approx(
        [truth(c) for c in confidences], abs=0.05
    )


def test_without_observations_confidence_is_the_probability() -> None:
    confidences = [0.05, 0.3, 0.5, 0.9]
    assert of_chain(Calibration(), confidences) == pytest.approx(confidences, abs=0.01)


def test_very_confident_chains_are_distinguished_from_confident_ones() -> None:
    """0.97⁸ = 0.78 but 0.998⁸ = 0.98: bins must be fine near 1."""
    calibration = Calibration()
    rng = np.random.default_rng(0)
    for c in (0.97, 0.998):
        right = rng.random(3000) < c
        learn(calibration, [(DraftTree.chain([1], [c]), [1 if ok else 2]) for ok in right])
    assert of_chain(calibration, [0.97, 0.998]) == pytest.approx([0.97, 0.998], abs=0.008)


def test_each_sibling_rank_has_its_own_curve() -> None:
    """The second of two equally confident siblings is right less often under shared noise."""
    calibration = Calibration()
    rng = np.random.default_rng(0)
    pair = DraftTree.build([1, 2], [ROOT, ROOT], [0.4, 0.4])
    committed = rng.choice([1, 2, 3], 4000, p=[0.6, 0.1, 0.3])
    learn(calibration, [(pair, [token]) for token in committed])
    [tree] = calibrated(calibration, [pair])
    assert tree.confidence == pytest.approx([0.6, 0.1], abs=0.03)
    assert rank_acceptance(calibration.rank_counts, 1, 0.5) == pytest.approx(0.1, abs=0.02)
    assert rank_acceptance(calibration.rank_counts, 2, 0.5) == 0.5
    assert float(calibration.survival(np.array([0.8]))[0]) == pytest.approx(0.7, abs=0.03)


@settings(deadline=None, derandomize=True)
@given(st.lists(trees(), min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=4))
def test_siblings_never_sum_to_more_than_one(
    drafted: list[DraftTree], committed: list[int]
) -> None:
    """Also after merging drafters that are confident of different tokens."""
    calibration = Calibration()
    learn(calibration, [(tree, committed) for tree in drafted for _ in range(20)])
    calibrated_trees = calibrated(calibration, drafted)
    for tree in [*calibrated_trees, merged_each([calibrated_trees])[0][0]]:
        for parent in {ROOT, *range(len(tree))}:
            assert tree.confidence[tree.parents == parent].sum() <= 1.0 + 1e-5


@settings(deadline=None, derandomize=True)
@given(st.lists(trees(), max_size=5))
def test_trees_of_a_batch_are_calibrated_independently(drafted: list[DraftTree]) -> None:
    """The rest of the batch has no effect, and only confidences change."""
    calibration = Calibration()
    observe_drafts(calibration, np.sqrt, rounds=500)
    for tree, result in zip(drafted, calibrated(calibration, drafted), strict=True):
        assert np.array_equal(result.confidence, calibrated(calibration, [tree])[0].confidence)
        assert np.array_equal(result.tokens, tree.tokens)
        assert np.array_equal(result.parents, tree.parents)


@settings(deadline=None, derandomize=True)
@given(trees(), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_exactly_the_children_of_committed_paths_are_counted(
    tree: DraftTree, committed: list[int]
) -> None:
    """By definition: the tokens of a node's ancestors and one more have been committed."""
    calibration = Calibration()
    learn(calibration, [(tree, committed)])
    counted = right = 0
    for node in range(len(tree)):
        path = tree.tokens[tree.path(node)].tolist()
        if len(path) <= len(committed) and path[:-1] == committed[: len(path) - 1]:
            counted += 1
            right += path == committed[: len(path)]
    assert calibration.rank_counts.sum(axis=0).tolist() == [counted, right]


def test_follows_a_drafter_that_changes() -> None:
    calibration = Calibration()
    observe_drafts(calibration, lambda c: 0.9)
    observe_drafts(calibration, lambda c: 0.1, rounds=30_000, seed=1)
    assert of_chain(calibration, [0.5])[0] == pytest.approx(0.1, abs=0.05)


def test_memory_does_not_grow() -> None:
    calibration = Calibration()
    observe_drafts(calibration, np.sqrt, rounds=100)
    small = len(pickle.dumps(calibration))
    observe_drafts(calibration, np.sqrt, rounds=20_000)
    assert len(pickle.dumps(calibration)) <= small + 64


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(1e-3, 1e3)), min_size=1, max_size=24),
    st.sampled_from([1, 2, 9]),
)
def test_isotonic_equals_scipys(points: list[tuple[float, float]], digits: int) -> None:
    """Rounding makes ties."""
    values, weight = np.array(points).T
    values = values.round(digits)
    expected = isotonic_regression(values, weights=weight).x
    assert isotonic(values, weight) == pytest.approx(expected, rel=1e-9, abs=1e-12)
