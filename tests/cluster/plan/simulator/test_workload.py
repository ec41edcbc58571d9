"""Arrivals, lengths, replays and predicted lengths have their stated distributions."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import kendalltau

from cluster.plan.simulator.workload import Floats, Lengths, bursty, draw, poisson, predict_lengths


@pytest.mark.parametrize(("arrive", "variation"), [(poisson, 1.0), (bursty, 3.0)])
def test_arrivals_have_their_rate_and_their_burstiness(
    arrive: Callable[[float, int, int], Floats], variation: float
) -> None:
    times = arrive(4.0, 20_000, 1)
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.25, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.08)
    assert (gaps >= 0).all()
    assert np.array_equal(times, arrive(4.0, 20_000, 1))
    assert not np.array_equal(times, arrive(4.0, 20_000, 2))


def test_lengths_and_domains_have_their_distribution() -> None:
    arrivals = draw(
        poisson(1.0, 5000, 0), 0, Lengths(output_mean=100, output_spread=0.5), ("code", "prose")
    )
    outputs = np.array([one.output_tokens for one in arrivals])
    assert outputs.mean() == pytest.approx(100, rel=0.05)
    assert outputs.min() >= 1
    assert np.mean([one.domain == "code" for one in arrivals]) == pytest.approx(0.5, abs=0.03)
    assert len({one.name for one in arrivals}) == 5000


@pytest.mark.parametrize("tau", [0.3, 0.6, 0.9])
def test_predicted_lengths_have_the_given_tau(tau: float) -> None:
    arrivals = predict_lengths(draw(poisson(1.0, 2000, 0), 0), tau, seed=5)
    true = [one.output_tokens for one in arrivals]
    predicted = [one.predicted_tokens or 0.0 for one in arrivals]
    assert kendalltau(true, predicted).statistic == pytest.approx(tau, abs=0.02)
