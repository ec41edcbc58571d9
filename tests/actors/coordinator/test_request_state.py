"""Requests that wait for their first token, as the policies see them."""

from statistics import mean

import pytest

from actors.coordinator.settings import Limits
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.hardware import A100, roofline
from cluster.plan.simulator.run import Cluster, DrafterSpec, named_policies, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from lab.papers.hardware import LLAMA_7B
from policies.cost import ForwardCost
from policies.request import Slo

SLOW_DRAFTS = ForwardCost(0.0, 0.0, 4e-3)
TTFT_S = 0.03


@pytest.mark.parametrize("speculation", ["planner", "fixed"])
def test_the_planner_drafts_less_while_a_first_token_is_due(speculation: str) -> None:
    """Eight requests decode with drafts, and others come one after the other."""
    cluster = Cluster(
        roofline(LLAMA_7B, A100),
        KvMemory(100_000),
        [DrafterSpec("ssm", "ssm", SLOW_DRAFTS, capacity=64)],
        Acceptance({("", "ssm"): synthetic(0.9)}),
    )
    limits = Limits(max_batch=64, max_waiting=64, kv_tokens=100_000)

    def in_time(slo: Slo) -> float:
        decoding = [Arrival(f"d{n}", 0.0, 50, 400, 400) for n in range(8)]
        late = [Arrival(f"l{n}", 0.5 + 0.037 * n, 50, 1, 1, slo=slo) for n in range(20)]
        policies = named_policies(speculation, "fixed", "fcfs")
        served = simulate([*decoding, *late], cluster, policies, limits).served
        return mean(one.ttft_s <= TTFT_S for one in served if one.arrival.name.startswith("l"))

    without, within = in_time(Slo()), in_time(Slo(ttft_s=TTFT_S))
    assert without < 0.9
    assert within == (1.0 if speculation == "planner" else without)
