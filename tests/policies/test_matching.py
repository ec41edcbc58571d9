"""Matchings have the greatest total value, by either of the two algorithms."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from policies.matching import KM_ROWS, UNMATCHED, match

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

MANY = 2 * KM_ROWS
LANES = 6


def total_value(values: Floats, unmatched: Floats, chosen: Ints) -> float:
    matched = chosen != UNMATCHED
    return float(unmatched[~matched].sum() + values[matched, chosen[matched]].sum())


def assert_fits(chosen: Ints, capacities: Ints) -> None:
    for lane, capacity in enumerate(capacities):
        assert np.sum(chosen == lane) <= capacity


def expanded_km(values: Floats, capacities: Ints, unmatched: Floats) -> float:
    """The paper's algorithm: B_j copies of each lane, plus a place of its own for each request."""
    requests = len(values)
    places = np.repeat(np.arange(len(capacities)), capacities)
    apart = np.where(np.eye(requests, dtype=bool), unmatched[:, None], -np.inf)
    matrix = np.hstack([values[:, places], apart])
    rows, columns = linear_sum_assignment(matrix, maximize=True)
    return float(matrix[rows, columns].sum())


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    requests=st.integers(0, 5),
    lanes=st.integers(0, 3),
    levels=st.sampled_from([2, 1000]),
)
def test_small_matchings_equal_brute_force(
    seed: int, requests: int, lanes: int, levels: int
) -> None:
    """Few levels cause ties; the value of having no lane is random, so that it may be the best."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, levels, (requests, lanes)).astype(float)
    unmatched = rng.integers(-levels, levels, requests).astype(float)
    capacities = rng.integers(0, 3, lanes)
    best = max(
        total_value(values, unmatched, np.array(choice, np.intp))
        for choice in product(range(UNMATCHED, lanes), repeat=requests)
        if all(choice.count(lane) <= capacities[lane] for lane in range(lanes))
    )
    chosen = match(values, capacities, unmatched)
    assert_fits(chosen, capacities)
    assert total_value(values, unmatched, chosen) == pytest.approx(best)


VALUES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "unrelated": lambda rng: rng.uniform(0, 1, (MANY, LANES)),
    "lanes differ": lambda rng: rng.uniform(20, 80, LANES) + rng.normal(0, 1, (MANY, LANES)),
    "all alike": lambda rng: np.tile(rng.uniform(20, 80, LANES), (MANY, 1)),
    "all the same": lambda rng: np.full((MANY, LANES), 5.0),
    "request factor times lane factor": lambda rng: (
        rng.uniform(0.2, 1, (MANY, 1)) * rng.uniform(1, 9, LANES)
    ),
    "domains": lambda rng: rng.uniform(20, 80, (4, LANES))[rng.integers(4, size=MANY)],
    "few levels": lambda rng: rng.integers(0, 3, (MANY, LANES)).astype(float),
}


@pytest.mark.parametrize("preferences", VALUES)
@pytest.mark.parametrize("room", [0.4, 1.0, 1.3])
@pytest.mark.parametrize("plain", ["far below", "in between"])
def test_large_matchings_are_as_good_as_km_alone(preferences: str, room: float, plain: str) -> None:
    """Above KM_ROWS the algorithm is another, but the value the same, also where preferences agree
    and places are scarce."""
    rng = np.random.default_rng(1)
    values = VALUES[preferences](rng)
    capacities = rng.multinomial(int(room * MANY), np.full(LANES, 1 / LANES))
    unmatched = (
        np.full(MANY, values.min() - 1000.0)
        if plain == "far below"
        else rng.uniform(values.min(), values.max(), MANY)
    )
    chosen = match(values, capacities, unmatched)
    assert_fits(chosen, capacities)
    best = expanded_km(values, capacities, unmatched)
    assert total_value(values, unmatched, chosen) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("requests", [10, MANY])
def test_as_many_are_matched_as_there_are_places(requests: int) -> None:
    values = np.random.default_rng(0).uniform(0, 1, (requests, 2))
    chosen = match(values, np.array([3, 4]), np.full(requests, -100.0))
    assert np.sum(chosen != UNMATCHED) == 7


def test_lanes_without_places_and_no_lanes_at_all() -> None:
    assert match(np.ones((2, 1)), np.array([0]), np.zeros(2)).tolist() == [UNMATCHED] * 2
    assert match(np.ones((2, 0)), np.array([], np.intp), np.zeros(2)).tolist() == [UNMATCHED] * 2
