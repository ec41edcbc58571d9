"""Confidence becomes the probability of acceptance, whatever the drafter thinks of itself."""

import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from policies.estimates.calibration import Calibration, CalibrationParams, isotonic, rank_acceptance
from policies.tree import ROOT, DraftTree
from tests.policies.test_tree import trees
from tests.policies.tree_lists import calibrated, learn, merged_each


def show(
    calibration: Calibration,
    truth: Callable[[float], float],
    rounds: int = 8000,
    seed: int = 0,
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
def test_learns_what_confidence_is_worth(truth: Callable[[float], float]) -> None:
    calibration = Calibration()
    show(calibration, truth)
    asked = [0.2, 0.4, 0.6, 0.8, 0.95]
    assert of_chain(calibration, asked) == pytest.approx([truth(c) for c in asked], abs=0.05)


def test_takes_an_unknown_drafter_at_its_word() -> None:
    asked = [0.05, 0.3, 0.5, 0.9]
    assert of_chain(Calibration(), asked) == pytest.approx(asked, abs=0.01)


def test_long_confident_chains_are_told_from_nearly_confident_ones() -> None:
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
    said = rng.choice([1, 2, 3], 4000, p=[0.6, 0.1, 0.3])
    learn(calibration, [(pair, [token]) for token in said])
    [told] = calibrated(calibration, [pair])
    assert told.confidence == pytest.approx([0.6, 0.1], abs=0.03)
    assert rank_acceptance(calibration.rank_counts, 1, 0.5) == pytest.approx(0.1, abs=0.02)
    assert rank_acceptance(calibration.rank_counts, 2, 0.5) == 0.5
    assert float(calibration.survival(np.array([0.8]))[0]) == pytest.approx(0.7, abs=0.03)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=200))
def test_more_confidence_is_never_worth_less(seen: list[tuple[float, bool]]) -> None:
    calibration = Calibration(CalibrationParams(refit_every=1))
    learn(calibration, [(DraftTree.chain([1], [c]), [1 if ok else 2]) for c, ok in seen])
    told = of_chain(calibration, np.linspace(0, 1, 101).tolist())
    assert np.all(np.diff(told) >= -1e-6)
    assert min(told) >= 0.0
    assert max(told) <= 1.0


@settings(deadline=None, derandomize=True)
@given(st.lists(trees(), min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=4))
def test_siblings_never_exceed_certainty(drafted: list[DraftTree], committed: list[int]) -> None:
    """Also after drafters are merged, each of which was sure of another token."""
    calibration = Calibration(CalibrationParams(refit_every=1, prior=0.1))
    learn(calibration, [(tree, committed) for tree in drafted for _ in range(20)])
    told = calibrated(calibration, drafted)
    for tree in [*told, merged_each([told])[0][0]]:
        for parent in {ROOT, *range(len(tree))}:
            assert tree.confidence[tree.parents == parent].sum() <= 1.0 + 1e-5


@settings(deadline=None, derandomize=True)
@given(st.lists(trees(), max_size=5))
def test_trees_are_calibrated_one_by_one(drafted: list[DraftTree]) -> None:
    """What else is in the batch changes nothing, and only the confidences change."""
    calibration = Calibration()
    show(calibration, np.sqrt, rounds=500)
    for tree, told in zip(drafted, calibrated(calibration, drafted), strict=True):
        assert np.array_equal(told.confidence, calibrated(calibration, [tree])[0].confidence)
        assert np.array_equal(told.tokens, tree.tokens)
        assert np.array_equal(told.parents, tree.parents)


@settings(deadline=None, derandomize=True)
@given(trees(), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_judges_exactly_the_children_of_what_was_committed(
    tree: DraftTree, committed: list[int]
) -> None:
    """By definition: a node's ancestors spell committed tokens, and one more is known."""
    calibration = Calibration()
    learn(calibration, [(tree, committed)])
    judged = right = 0
    for node in range(len(tree)):
        path = tree.tokens[tree.path(node)].tolist()
        if len(path) <= len(committed) and path[:-1] == committed[: len(path) - 1]:
            judged += 1
            right += path == committed[: len(path)]
    assert calibration.rank_counts.sum(axis=0).tolist() == [judged, right]


def test_follows_a_drafter_that_changes() -> None:
    calibration = Calibration(CalibrationParams(memory=1000))
    show(calibration, lambda c: 0.9)
    show(calibration, lambda c: 0.1, rounds=6000, seed=1)
    assert of_chain(calibration, [0.5])[0] == pytest.approx(0.1, abs=0.05)


def test_memory_does_not_grow() -> None:
    calibration = Calibration()
    show(calibration, np.sqrt, rounds=100)
    small = len(pickle.dumps(calibration))
    show(calibration, np.sqrt, rounds=20_000)
    assert len(pickle.dumps(calibration)) <= small + 64


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(1e-3, 1e3)), min_size=1, max_size=24),
    st.sampled_from([1, 2, 9]),
)
def test_the_rising_curve_is_scipy_s_to_the_bit(
    points: list[tuple[float, float]], digits: int
) -> None:
    """Rounded: there are ties among them."""
    told, weight = np.array(points).T
    told = told.round(digits)
    assert np.array_equal(isotonic(told, weight), isotonic_regression(told, weights=weight).x)
