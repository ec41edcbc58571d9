"""Matchings have the greatest total value."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from policies.selection.lane_capacity import UNMATCHED, match

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def total_value(values: Floats, unmatched: Floats, chosen: Ints) -> float:
    matched = chosen != UNMATCHED
    return float(unmatched[~matched].sum() + values[matched, chosen[matched]].sum())


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
    assert all(np.sum(chosen == lane) <= capacity for lane, capacity in enumerate(capacities))
    assert total_value(values, unmatched, chosen) == pytest.approx(best)
