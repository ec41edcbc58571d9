"""The goodput that a policy can expect at most which does not know the target's output."""

from pathlib import Path

import pytest

from benchmarks.simulator.acceptance import Acceptance, synthetic
from benchmarks.simulator.run import Cluster, DrafterSpec
from benchmarks.simulator.verifier import KvMemory
from benchmarks.simulator.workload import Arrival
from lab.papers.cells import cell
from lab.papers.expected_bound import expected_bound
from lab.papers.experiment import build_experiment
from lab.papers.measuring import measure
from lab.papers.row import Scalar
from policies.cost import LinearCost
from policies.request import Slo

FLUCTUATING: dict[str, Scalar] = {"machine": "qwen", "dataset": "equal", "workload": "fluctuating"}


def cluster(acceptance: float, kv_tokens: int = 10**9) -> Cluster:
    """A forward takes 30 ms and 0.1 ms a row, a draft step 1 ms."""
    chains = synthetic(acceptance, rank_shares=(), sibling_confidence=())
    return Cluster(
        LinearCost(0.0, 1e-4, 0.03),
        KvMemory(kv_tokens),
        [DrafterSpec("small", "small", LinearCost(0.0, 0.0, 0.001))],
        Acceptance({("", "small"): chains}),
        most_tokens=4096,
    )


def requests(tpot_s: float) -> list[Arrival]:
    """So many at once that what a round allows decides, not when they arrive."""
    return [Arrival(f"r{number}", 0.0, 1, 101, 200, slo=Slo(None, tpot_s)) for number in range(500)]


def test_without_right_drafts_as_many_decode_at_once_as_their_tpot_allows() -> None:
    """A round of 200 takes 50 ms, so 4,000 tokens a second, less one row in 101 for the prompt."""
    assert expected_bound(requests(0.05), cluster(0.01), seed=0) == pytest.approx(4000, rel=0.03)


def test_a_tpot_below_the_shortest_round_cannot_be_attained_without_drafts() -> None:
    assert expected_bound(requests(0.02), cluster(0.01), seed=0) == pytest.approx(0.0, abs=1e-3)
    assert expected_bound(requests(0.02), cluster(0.7), seed=0) > 500


def test_memory_limits_how_many_decode_at_once() -> None:
    """Each holds some 51 tokens, so 50 fit: 50 tokens in 35 ms."""
    limited = cluster(0.01, kv_tokens=51 * 50 + 25)
    assert expected_bound(requests(0.05), limited, seed=0) == pytest.approx(50 / 0.035, rel=0.03)


def test_a_request_without_tpot_is_refused() -> None:
    with pytest.raises(ValueError, match="r0 has no TPOT"):
        expected_bound([Arrival("r0", 0.0, 1, 10, 20)], cluster(0.5), seed=0)


@pytest.mark.parametrize("rate", [1.0, 12.0])
def test_no_policy_that_sees_confidences_exceeds_it(rate: float) -> None:
    for arm in ("product", "fixed_1"):
        one = cell("adaserve", arm, {**FLUCTUATING, "requests": 24, "rate": rate})
        ready = build_experiment(one, Path())
        bound = expected_bound(ready.requests, ready.cluster, one.seed)
        assert 0.0 < measure(one, Path())["goodput"] < bound, arm
