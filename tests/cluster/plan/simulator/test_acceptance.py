"""Joint and marginal distributions of the acceptance model's draws."""

import numpy as np
import pytest
from numpy.typing import NDArray

from cluster.plan.simulator.acceptance import Acceptance, DrafterModel, Draws, synthetic

REQUESTS = 300


def draws(model: DrafterModel) -> list[Draws]:
    acceptance = Acceptance({("", "ssm"): model})
    return [acceptance.draws(seed, "", "ssm", 0) for seed in range(REQUESTS)]


def accepted(drawn: list[Draws]) -> NDArray[np.bool_]:
    """[requests, positions]: the first choice is right."""
    return np.stack([one.rank == 0 for one in drawn])


def confidence(drawn: list[Draws]) -> NDArray[np.float32]:
    return np.stack([one.confidence[:, 0] for one in drawn])


@pytest.mark.parametrize("mean", [0.3, 0.6, 0.9])
def test_the_mean_acceptance_is_the_given_one(mean: float) -> None:
    model = synthetic(mean, persistence=0.5, early_share=0.3)
    assert model.acceptance == pytest.approx(mean, abs=0.01)
    assert accepted(draws(model)).mean() == pytest.approx(mean, abs=0.03)


def test_acceptance_follows_confidence() -> None:
    drawn = draws(synthetic(0.6))
    confident, right = confidence(drawn), accepted(drawn)
    for low in (0.2, 0.4, 0.6, 0.8):
        band = (confident > low) & (confident < low + 0.1)
        assert right[band].mean() == pytest.approx(confident[band].mean(), abs=0.03)


def test_siblings_are_ranked_and_hold_their_shares_of_the_misses() -> None:
    drawn = draws(synthetic(0.6, rank_shares=(0.3, 0.1), sibling_confidence=(0.5, 0.2)))
    rank = np.stack([one.rank for one in drawn])
    misses = rank[rank != 0]
    assert (misses == 1).mean() == pytest.approx(0.3, abs=0.02)
    assert (misses == 2).mean() == pytest.approx(0.1, abs=0.02)
    confidences = np.stack([one.confidence for one in drawn])
    assert (np.diff(confidences, axis=2) <= 0).all()
    assert (confidences.sum(axis=2) <= 1 + 1e-6).all()


def test_acceptance_drifts_at_first_and_then_settles() -> None:
    """LAPS-SD, Fig. 3: a request's first tokens predict its end less than its middle does."""
    drawn = accepted(draws(synthetic(0.6, request_share=0.2, early_share=0.7, early_tokens=40.0)))
    first, middle, last = (drawn[:, part].mean(1) for part in np.split(np.arange(192), 3))
    assert np.corrcoef(first, last)[0, 1] < np.corrcoef(middle, last)[0, 1] - 0.1
