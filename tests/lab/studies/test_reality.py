"""The simulator predicts real runs of the zoo in this process."""

import asyncio

import pytest
import torch

from actors.coordinator.estimates import Estimates
from actors.hosts.fleet import Fleet, start_fleet
from benchmarks.serving.local import drafter_config, target_config
from benchmarks.serving.requests import mixed_requests
from lab.studies.reality import (
    RealRun,
    Serving,
    compare_repeatedly,
    modelled,
    policies,
    record,
    run_for_real,
    simulated,
)

MAX_ERROR = 0.25
CLIENTS = 4
RECORDED, REQUESTS = mixed_requests(18, seed=2), mixed_requests(18)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    torch.set_num_threads(1)
    target = target_config(None, "float32")
    drafters = [drafter_config("tiny"), drafter_config("ngram")]
    return asyncio.run(start_fleet(target, drafters, tmp_path_factory.mktemp("profiles")))


def serve(fleet: Fleet, speculation: str, drafter: str) -> tuple[RealRun, Estimates]:
    estimates = Estimates(fleet.costs, [lane.view for lane in fleet.lanes])
    serving = Serving(policies(speculation, "fixed", drafter), estimates, CLIENTS)
    return asyncio.run(run_for_real(fleet, fleet.lanes, REQUESTS, serving)), estimates


def test_tokens_per_round_of_fixed_drafts_are_predicted(fleet: Fleet) -> None:
    """Acceptance recorded on some requests predicts that of others; no time is measured."""
    acceptance = asyncio.run(record(fleet, RECORDED, CLIENTS))
    real, estimates = serve(fleet, "fixed", "tiny")
    cluster = modelled(fleet, acceptance, estimates, real)
    report = simulated(cluster, REQUESTS, real, CLIENTS, policies("fixed", "fixed", "tiny"))
    assert real.tally.tokens_per_round > 1.5, "drafts are accepted"
    assert report.tokens_per_round == pytest.approx(real.tally.tokens_per_round, rel=MAX_ERROR)
    assert report.tally.drafted == pytest.approx(real.tally.drafted, rel=MAX_ERROR)


def test_each_mode_is_compared_with_its_real_run(fleet: Fleet) -> None:
    """How far off a prediction may be, the command itself asserts: it compares times."""
    records = compare_repeatedly(1, fleet, RECORDED, REQUESTS, [CLIENTS])
    assert len({record.name for record in records}) == 6
    assert all(record.ratio and record.ratio > 0 for record in records)
