"""The power mean of speeds, added up node by node."""

import numpy as np
import pytest

from policies.speculation.planner.objective import value_of, worth_of

GAINS = np.array([[0.9, 0.7, 0.1], [0.4, 0.0, 0.0], [0.0, 0.0, 0.0]])
"""Of three requests, what node after node brings."""
WEIGHTS = np.array([1.0, 5.0, 2.0])


def by_nodes(power: float, seconds: float) -> float:
    worth = 0.0
    for weight, nodes in zip(WEIGHTS, GAINS, strict=True):
        before = 0.0
        for node in nodes:
            worth += weight * worth_of(power, before, node)
            before += node
    return value_of(power, worth, WEIGHTS.sum(), seconds)


@pytest.mark.parametrize("power", [0.3, 0.5, 1.0])
def test_what_nodes_are_worth_adds_up_to_the_power_mean_of_speeds(power: float) -> None:
    speeds = (1.0 + GAINS.sum(axis=1)) / 0.02
    mean = np.average(speeds**power, weights=WEIGHTS) ** (1.0 / power)
    assert by_nodes(power, seconds=0.02) == pytest.approx(np.log(mean))


def test_power_0_is_the_geometric_mean_and_the_limit_of_small_powers() -> None:
    speeds = (1.0 + GAINS.sum(axis=1)) / 0.02
    geometric = np.average(np.log(speeds), weights=WEIGHTS)
    assert by_nodes(0.0, seconds=0.02) == pytest.approx(geometric)
    assert by_nodes(1e-6, seconds=0.02) == pytest.approx(geometric, abs=1e-5)
