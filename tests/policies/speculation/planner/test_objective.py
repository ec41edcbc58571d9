"""The mean speed, added up node by node."""

import numpy as np
import pytest
from policies.speculation.planner.objective import value_of, worth_of

GAINS = np.array([[0.9, 0.7, 0.1], [0.4, 0.0, 0.0], [0.0, 0.0, 0.0]])
"""Of three requests, what node after node brings."""
SPEEDS = (1.0 + GAINS.sum(axis=1)) / 0.02


def by_nodes(fair: bool, weights: np.ndarray) -> float:
    worth = 0.0
    for weight, nodes in zip(weights, GAINS, strict=True):
        before = 0.0
        for node in nodes:
            worth += weight * worth_of(fair, before, node)
            before += node
    return value_of(fair, worth, weights.sum(), seconds=0.02)


def test_fair_is_the_weighted_geometric_mean() -> None:
    weights = np.array([1.0, 5.0, 2.0])
    geometric = np.average(np.log(SPEEDS), weights=weights)
    assert by_nodes(True, weights) == pytest.approx(geometric)


def test_throughput_is_the_arithmetic_mean() -> None:
    assert by_nodes(False, np.ones(3)) == pytest.approx(np.log(SPEEDS.mean()))
