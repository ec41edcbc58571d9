"""The refined cost model follows the machine, and stays within bounds whatever it observes."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cost import CostModel, ForwardCost
from policies.estimates.online_cost import RefinedCost

FITTED = ForwardCost(alpha=1e-6, gamma=5e-5, delta=9e-3, knee=24, gamma_more=6e-4)
STEP = ForwardCost(alpha=1e-7, gamma=3e-5, delta=2e-4)
SECONDS = st.one_of(st.floats(0, 1e9), st.just(0.0), st.floats(-1, 0))


def observe_rounds(
    cost: RefinedCost, truth: Callable[[float, float], float], rounds: int, seed: int = 0
) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        context, tokens = float(rng.integers(0, 8000)), float(rng.integers(1, 100))
        cost.observe(context, tokens, truth(context, tokens) * float(np.exp(0.05 * rng.normal())))


def worst_error(cost: CostModel, truth: Callable[[float, float], float]) -> float:
    return max(
        abs(cost.predict(context, tokens) / truth(context, tokens) - 1)
        for context in (0, 2000, 8000)
        for tokens in (1, 16, 64, 100)
    )


@pytest.mark.parametrize(
    ("fixed", "reading", "computing"),
    [(2.0, 1.0, 1.0), (1.0, 2.5, 2.5), (0.5, 0.7, 0.7), (1.0, 1.0, 2.5), (1.0, 2.5, 0.8)],
)
def test_finds_how_much_slower_each_part_is(fixed: float, reading: float, computing: float) -> None:
    def truth(context: float, tokens: float) -> float:
        return (
            fixed * FITTED.delta
            + reading * FITTED.alpha * context
            + computing * (FITTED.predict(0, tokens) - FITTED.delta)
        )

    cost = RefinedCost(FITTED)
    observe_rounds(cost, truth, 300)
    assert worst_error(FITTED, truth) > 0.2
    assert worst_error(cost, truth) < 0.08


def test_follows_a_machine_that_changes() -> None:
    def slower(context: float, tokens: float) -> float:
        return 2 * FITTED.predict(context, tokens)

    cost = RefinedCost(FITTED)
    observe_rounds(cost, FITTED.predict, 2000)
    observe_rounds(cost, slower, 800, seed=1)
    assert worst_error(cost, slower) < 0.1


def test_learns_what_tokens_cost_where_the_fit_says_that_they_are_free() -> None:
    def served(_context: float, tokens: float) -> float:
        return 0.04 + 0.0012 * tokens

    cost = RefinedCost(ForwardCost(alpha=3e-5, gamma=0.0, delta=0.067))
    observe_rounds(cost, served, 300)
    learned = cost.predict(0, 100) - cost.predict(0, 1)
    assert learned == pytest.approx(served(0, 100) - served(0, 1), rel=0.1)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 500), SECONDS), max_size=60))
def test_predictions_stay_within_bounds_and_rise_with_work(
    seen: list[tuple[float, int, float]],
) -> None:
    """Any observations leave predictions within the bounds, and never lower for more work."""
    cost = RefinedCost(FITTED)
    for context, tokens, seconds in seen:
        cost.observe(context, tokens, seconds)
    for context, tokens in [(0, 0), (0, 1), (5000, 20), (5000, 200)]:
        fitted = FITTED.predict(context, tokens)
        assert fitted / 16.001 <= cost.predict(context, tokens) <= fitted * 16.001
    assert cost.predict(0, 10) <= cost.predict(0, 50) <= cost.predict(9000, 50)


def test_an_outlier_changes_predictions_little() -> None:
    cost = RefinedCost(FITTED)
    observe_rounds(cost, FITTED.predict, 300)
    for seconds in (1e6, 0.0):
        before = cost.predict(1000, 30)
        cost.observe(1000, 30, seconds)
        assert cost.predict(1000, 30) == pytest.approx(before, rel=0.05)


def test_a_drafter_that_costs_nothing_stays_free() -> None:
    free = RefinedCost(ForwardCost(0.0, 0.0, 0.0))
    free.observe(10, 1, 1.0)
    assert free.predict(10, 1) == 0.0


def test_a_steeper_cost_of_tokens_is_distinguished_from_a_slower_machine() -> None:
    """Small forwards have few tokens: otherwise a plain round would look slower as well."""

    def steeper(context: float, tokens: float) -> float:
        return FITTED.predict(context, tokens) + 1e-4 * tokens  # three times the slope

    cost, rng = RefinedCost(FITTED), np.random.default_rng(0)
    for _ in range(300):
        context, tokens = float(rng.integers(400, 800)), float(rng.integers(4, 24))
        cost.observe(context, tokens, steeper(context, tokens) * float(np.exp(0.05 * rng.normal())))
    for tokens in (4, 20):
        assert cost.predict(600, tokens) == pytest.approx(steeper(600, tokens), rel=0.02)


def test_the_overhead_of_calls_is_distinguished_from_their_forwards() -> None:
    """Calls of one forward and of six: otherwise short calls would make long ones look
    expensive."""
    cost = RefinedCost(STEP, longest_call=100.0)
    rng = np.random.default_rng(0)
    for forwards in [1, 6] * 60:
        tokens = float(rng.integers(2, 12))
        seconds = 2e-3 + forwards * STEP.predict(0, tokens)
        cost.observe(0, tokens, seconds * float(np.exp(0.1 * rng.normal())), forwards)
    assert cost.call_s == pytest.approx(2e-3, rel=0.1)
    assert cost.predict(0, 6) == pytest.approx(STEP.predict(0, 6), rel=0.15)
