"""Arrivals, lengths, replays and predicted lengths have their stated distributions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.simulator.workload import (
    Floats,
    Lengths,
    bursty,
    draw,
    poisson,
    predict_lengths,
    replay_csv,
)


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


def test_a_trace_is_replayed_between_two_times_at_the_given_speed(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "arrival_s,prompt_tokens,output_tokens\n1.0,9,9\n10.0,374,44\n14.0,396,0\n30,1,1\n"
    )
    first, second = replay_csv(file, start_s=10.0, end_s=30.0, speed=2.0)
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert (second.at_s, second.prompt_tokens, second.output_tokens) == (2.0, 396, 1)
    assert first.max_tokens == second.max_tokens == 44


@pytest.mark.parametrize("tau", [0.3, 0.6, 0.9])
def test_predicted_lengths_have_the_given_tau(tau: float) -> None:
    arrivals = predict_lengths(draw(poisson(1.0, 2000, 0), 0), tau, seed=5)
    true = [one.output_tokens for one in arrivals]
    predicted = [one.predicted_tokens or 0.0 for one in arrivals]
    assert kendalltau(true, predicted).statistic == pytest.approx(tau, abs=0.02)
