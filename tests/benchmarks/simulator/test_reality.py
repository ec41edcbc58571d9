"""The simulator predicts what the zoo really does in this process."""

import asyncio
from statistics import median

import pytest
import torch

from actors.fleet import Fleet, load
from actors.knowledge import Knowledge
from actors.specs import TargetSpec
from benchmarks.local import KV_TOKENS, drafter
from benchmarks.requests import mixed_requests
from benchmarks.simulator.reality import (
    Run,
    Serving,
    compare,
    modelled,
    policies,
    record,
    run_for_real,
    simulated,
)
from cluster.zoo.paths import TARGET, model_path

MOST_OFF = 0.25
CLIENTS = 4
REPEATS = 5
RECORDED, REQUESTS = mixed_requests(18, seed=2), mixed_requests(18)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    torch.set_num_threads(1)
    target = TargetSpec(model_path(TARGET), torch.float32, KV_TOKENS)
    return load(target, [drafter("tiny"), drafter("ngram")], tmp_path_factory.mktemp("profiles"))


def serve(fleet: Fleet, speculation: str, drafter: str) -> tuple[Run, Knowledge]:
    knowledge = Knowledge(fleet.costs, [lane.view for lane in fleet.lanes])
    serving = Serving(policies(speculation, "fixed", drafter), knowledge, CLIENTS)
    return asyncio.run(run_for_real(fleet, fleet.lanes, REQUESTS, serving)), knowledge


def test_tokens_per_round_of_fixed_drafts_are_predicted(fleet: Fleet) -> None:
    """No clock is in this: how much of what was recorded for some is accepted from others."""
    acceptance = asyncio.run(record(fleet, RECORDED, CLIENTS))
    real, knowledge = serve(fleet, "fixed", "tiny")
    cluster = modelled(fleet, acceptance, knowledge)
    report = simulated(cluster, REQUESTS, real, CLIENTS, policies("fixed", "fixed", "tiny"))
    assert real.tally.tokens_per_round > 1.5, "the drafter is of use"
    assert report.tokens_per_round == pytest.approx(real.tally.tokens_per_round, rel=MOST_OFF)
    assert report.tally.drafted == pytest.approx(real.tally.drafted, rel=MOST_OFF)


def test_the_median_prediction_is_within_a_quarter_of_reality(fleet: Fleet) -> None:
    """Of plain decoding, fixed drafts and the defaults. Judged once, however busy the machine:
    a pace that changes between two runs spoils one comparison, and not the median."""
    ratios: dict[str, list[float]] = {}
    for _ in range(REPEATS):
        for one in compare(fleet, RECORDED, REQUESTS, [CLIENTS]):
            ratios.setdefault(one.name, []).append(one.ratio or 0.0)
    typical = {name: median(seen) for name, seen in ratios.items()}
    assert all(abs(one - 1) <= MOST_OFF for one in typical.values()), typical
