"""Losslessness for every combination of policies, in virtual time over a fake target.

The simulator knows what its target says, so a run raises WrongOutput where a stream differs.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from actors.coordinator.events import Drafted, Event, LaneDown, Preempted, Verified, VerifierDown
from actors.coordinator.settings import Limits, Policies
from cluster.plan.simulator.acceptance import Acceptance, synthetic
from cluster.plan.simulator.device import Faults
from cluster.plan.simulator.run import Cluster, DrafterSpec, named_policies, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival
from policies.catalogue import SCHEDULES, SELECTIONS, SPECULATIONS
from policies.cost import ForwardCost
from policies.microbatch import MicroBatchParams
from policies.protocols import DraftPlan, LaneBatch, RoundContext
from policies.request import Slo
from policies.scheduling.fcfs import fcfs
from policies.selection.fixed import Fixed as OneDrafter
from policies.speculation.adaserve import AdaServe

VERIFY = ForwardCost(alpha=1e-7, gamma=1e-5, delta=0.02, knee=64, gamma_more=2e-4)
DRAFT = ForwardCost(alpha=1e-8, gamma=1e-6, delta=0.001)
LIMITS = Limits(max_batch=3, max_waiting=100, kv_tokens=320, forward_tokens=48)
CLUSTER = Cluster(
    VERIFY,
    KvMemory(320),
    [
        DrafterSpec("small", "small", DRAFT, capacity=2, faults=Faults([0.3], recovery_s=0.2)),
        DrafterSpec("large", "large", ForwardCost(1e-8, 1e-6, 0.004), capacity=2),
        DrafterSpec("ngram", "ngram", None),
    ],
    Acceptance({("", "small"): synthetic(0.6), ("", "large"): synthetic(0.8),
                ("", "ngram"): synthetic(0.3)}),
    verify_budget=32,
    most_tokens=32,
    verifier_faults=Faults([0.6], recovery_s=0.1),
)  # fmt: skip
ARRIVALS = [
    Arrival(
        f"r{number}",
        at_s=0.04 * number,
        prompt_tokens=10 + 23 * (number % 4),
        output_tokens=20 + 11 * (number % 5),
        max_tokens=60 if number % 3 else 30,
        slo=(Slo(), Slo(ttft_s=0.2, tpot_s=0.03), Slo(tpot_s=0.05))[number % 3],
        priority=number % 2,
        tenant="ab"[number % 2],
        predicted_tokens=None if number % 4 == 0 else 25.0 + number,
    )
    for number in range(10)
]


CHAINS_ONLY = replace(CLUSTER, memory=KvMemory(320, swap_s_per_token=None), trees=False)
"""As vLLM is. Its verifier raises where a tree branches."""


def serve(
    schedule: str, selection: str, speculation: str, cluster: Cluster = CLUSTER
) -> list[Event]:
    """Requests join and leave, a lane and the verifier die, and the KV is small."""
    events: list[Event] = []
    policies = named_policies(speculation, selection, schedule)
    report = simulate(ARRIVALS, cluster, policies, LIMITS, seed=2, observe=events.append)
    assert len(report.served) == len(ARRIVALS)
    expected = {VerifierDown} if speculation == "off" else {VerifierDown, LaneDown}
    assert expected <= {type(event) for event in events}
    return events


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_stream_is_the_targets_own(schedule: str) -> None:
    """Worth its seconds: every combination of selection and speculation with this schedule."""
    preempted = False
    for selection, speculation in product(SELECTIONS, SPECULATIONS):
        events = serve(schedule, selection, speculation)
        preempted |= any(isinstance(event, Preempted) for event in events)
    assert preempted or schedule == "fcfs"


def test_plans_know_all_active_requests_though_each_lane_is_planned_alone() -> None:
    """AdaServe's n, which without Spin's barrier is more than the requests of one plan."""
    counts: list[tuple[int, int]] = []

    class Counting(AdaServe):
        def plan(
            self, batches: Sequence[LaneBatch], context: RoundContext, now: float
        ) -> list[DraftPlan]:
            planned = {request.name for batch in batches for request in batch.requests}
            counts.append((context.active, len(planned)))
            return super().plan(batches, context, now)

    policies = Policies(fcfs(), OneDrafter(), Counting())
    apart = MicroBatchParams(parts=2)
    simulate(ARRIVALS, CLUSTER, lambda _: policies, LIMITS, pipeline=apart, seed=2)
    assert all(planned <= active <= LIMITS.max_batch for active, planned in counts)
    assert any(planned < active for active, planned in counts)


@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_a_verifier_of_chains_is_given_chains(speculation: str) -> None:
    """Whatever the policy drafts, and however lookup and a lane disagree."""
    events = serve("default", "hedge", speculation, CHAINS_ONLY)
    rounds = [o for event in events if isinstance(event, Verified) for o in event.outcomes]
    assert any(outcome.accepted for outcome in rounds) == (speculation != "off")
    assert all(outcome.drafted <= outcome.depth for outcome in rounds)
    deepest = max((outcome.depth for outcome in rounds), default=0)
    drafted = [event for event in events if isinstance(event, Drafted)]
    assert all(event.tokens <= deepest * event.requests for event in drafted), "for nothing"
