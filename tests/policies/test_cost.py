"""Fits recover the cost model that the samples were made from."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cost import (
    CostModel,
    ForwardCost,
    ForwardSample,
    fit_linear,
    fit_roofline,
    forward_seconds,
    token_budget,
)
from policies.estimates.online_cost import RefinedCost

TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
CONTEXTS = (0, 500, 2_000, 8_000)
ROOFLINE = ForwardCost(alpha=1e-6, gamma=5e-5, delta=9e-3, knee=24, gamma_more=6e-4)


def samples(
    cost: CostModel, tokens: Iterable[int] = TOKENS, noise: float = 0.0, seed: int = 0
) -> list[ForwardSample]:
    rng = np.random.default_rng(seed)
    return [
        ForwardSample(context, n, cost.predict(context, n) * float(np.exp(noise * rng.normal())))
        for n in tokens
        for context in CONTEXTS
    ]


@settings(deadline=None, derandomize=True)
@given(st.floats(1e-8, 1e-4), st.floats(1e-6, 1e-2), st.floats(1e-4, 1.0))
def test_linear_fit_recovers_a_line(alpha: float, gamma: float, delta: float) -> None:
    fitted = fit_linear(samples(ForwardCost(alpha, gamma, delta)))
    assert fitted.alpha == pytest.approx(alpha, rel=1e-4)
    assert fitted.gamma == pytest.approx(gamma, rel=1e-4)
    assert fitted.delta == pytest.approx(delta, rel=1e-3)


def test_coefficients_are_never_negative() -> None:
    """More context cannot make a forward cheaper, even if noisy samples suggest it."""
    falling = [ForwardSample(c, n, 1e-2 - 1e-7 * c) for n in TOKENS for c in CONTEXTS]
    fitted = fit_linear(falling)
    assert fitted.alpha == 0.0
    assert fitted.delta == pytest.approx(1e-2, rel=0.1)


@pytest.mark.parametrize("knee", [6, 24, 48])
def test_roofline_fit_finds_the_knee(knee: int) -> None:
    roofline = ForwardCost(
        ROOFLINE.alpha, ROOFLINE.gamma, ROOFLINE.delta, knee, ROOFLINE.gamma_more
    )
    fitted = fit_roofline(samples(roofline))
    assert fitted.knee == pytest.approx(knee, rel=0.05)
    assert fitted.gamma_more == pytest.approx(ROOFLINE.gamma_more, rel=0.05)


def test_roofline_fit_is_robust_to_noise() -> None:
    fitted = fit_roofline(samples(ROOFLINE, noise=0.05))
    assert 16 <= fitted.knee <= 32
    for n in TOKENS:
        assert fitted.predict(2_000, n) == pytest.approx(ROOFLINE.predict(2_000, n), rel=0.1)


def test_fit_prediction_and_refinement_all_respect_a_step() -> None:
    """17 to 36 tokens take as long as 36: the seventeenth is expensive, the next ones are free."""
    step = ForwardCost(1e-6, 1e-4, 9e-3, knee=48, gamma_more=6e-4, step_from=16, step_to=36)
    fitted = fit_roofline(samples(step), step_from=16, step_to=36)
    refined = RefinedCost(fitted)
    for _ in range(500):  # all forwards now take half as long again
        refined.observe(2_000, 20, 1.5 * step.predict(2_000, 20))
    for tokens in (1, 16, 17, 30, 36, 37, 100):
        exact = step.predict(2_000, tokens)
        assert fitted.predict(2_000, tokens) == pytest.approx(exact, rel=0.01)
        assert forward_seconds(fitted.piecewise, 2_000.0, float(tokens)) == fitted.predict(
            2_000, tokens
        )
    for cost in (fitted, refined):
        assert cost.predict(0, 17) == cost.predict(0, 36) > cost.predict(0, 16) * 1.1
        assert cost.predict(0, 37) > cost.predict(0, 36)
    assert refined.predict(2_000, 30) == pytest.approx(1.5 * step.predict(2_000, 30), rel=0.05)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 1_000))
def test_a_fitted_roofline_is_convex_and_rises_with_tokens_and_context(seed: int) -> None:
    """Without a step, marginal costs never fall."""
    fitted = fit_roofline(samples(ROOFLINE, noise=0.3, seed=seed))
    curve = np.array([fitted.predict(1_000, n) for n in range(1, 200)])
    steps = np.diff(curve)
    assert steps.min() >= 0
    assert np.diff(steps).min() >= -1e-12
    assert fitted.predict(2_000, 8) >= fitted.predict(1_000, 8)


@pytest.mark.parametrize(
    ("cost", "largest", "budget"),
    [
        (ROOFLINE, 128, 24),
        (ROOFLINE, 16, 16),
        # A slight bend, as on vLLM: the forward of 2 tokens takes 3.3 ms, that of 32 takes 5.6.
        (ForwardCost(6e-7, 3.9e-5, 3.2e-3, knee=2, gamma_more=4e-5), 128, 40),
        # Without a knee: as many tokens as cost what the fixed part does.
        (ForwardCost(1e-6, 0.25, 2.5, knee=5), 128, 10),
        (ForwardCost(1e-6, 0.0, 9e-3, knee=5), 128, 128),
        (ForwardCost(1e-6, 1.0, 9e-3, knee=5), 128, 1),
    ],
)
def test_the_budget_is_the_knee_up_to_the_largest_measured_size(
    cost: ForwardCost, largest: int, budget: int
) -> None:
    assert token_budget(cost, largest=largest) == budget
