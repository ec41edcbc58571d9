"""The oracles foresee the run rightly, and exceed the other policies."""

from collections.abc import Mapping

import pytest

from actors.coordinator.settings import Limits, Policies
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.run import Cluster, DrafterSpec, simulate
from cluster.plan.simulator.run_report import Report
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Lengths, draw
from lab.studies.oracle import Foresight, true_goodput
from lab.studies.selection_oracle import OracleSelection
from policies.catalogue import Calibrations, make_schedule, make_selection, make_speculation
from policies.cost import ForwardCost
from policies.protocols import Selection, Speculation

DRAFT = ForwardCost(0.0, 1e-6, 0.002)
CLUSTER = Cluster(
    ForwardCost(1e-8, 1e-5, 0.02, 32, 4e-4),
    KvMemory(100_000),
    [DrafterSpec("one", "one", DRAFT), DrafterSpec("two", "two", DRAFT)],
    Acceptance(
        {
            ("code", "one"): synthetic(0.85),
            ("code", "two"): synthetic(0.4),
            ("prose", "one"): synthetic(0.4),
            ("prose", "two"): synthetic(0.75),
        }
    ),
)
ARRIVALS = draw([0.0] * 100, 0, Lengths(64, 0.5, 80, 0.5, 256), ("code", "prose"))
LIMITS = Limits(max_batch=8, max_waiting=100, kv_tokens=100_000)


def served(selection: Selection, speculation: Speculation) -> Report:
    def make(_calibrations: Calibrations) -> Policies:
        return Policies(make_schedule("fcfs"), selection, speculation)

    return simulate(ARRIVALS, CLUSTER, make, LIMITS, clients=8, seed=5)


@pytest.fixture
def foresight() -> Foresight:
    return Foresight(ARRIVALS, CLUSTER, seed=5)


def test_true_goodput_is_higher_for_the_better_drafter_of_each_domain(foresight: Foresight) -> None:
    goodput = true_goodput(foresight, CLUSTER, batch=8)
    better: Mapping[str, str] = {"code": "one", "prose": "two"}
    right = [
        goodput(request.name, better[request.domain])
        == max(goodput(request.name, drafter) for drafter in ("one", "two"))
        for request in ARRIVALS
    ]
    assert sum(right) >= 90
    assert all(goodput(request.name, "one") >= goodput(request.name, None) for request in ARRIVALS)


def test_oracle_selection_beats_either_drafter_for_all_requests(foresight: Foresight) -> None:
    def throughput(selection: Selection) -> float:
        return served(selection, make_speculation("fixed", {"length": 4})).throughput

    best = throughput(OracleSelection(true_goodput(foresight, CLUSTER, batch=8)))
    for drafter in ("one", "two"):
        assert best > 1.05 * throughput(make_selection("fixed", {"drafter": drafter}))
