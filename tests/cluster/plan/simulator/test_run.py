"""Whole runs of the real coordinator in virtual time."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from actors.coordinator.events import Event, Verified
from actors.coordinator.settings import Limits, Policies
from cluster.plan.simulator.acceptance import Acceptance, DrafterModel, synthetic
from cluster.plan.simulator.outputs import TargetOutput
from cluster.plan.simulator.run import Cluster, DrafterSpec, MakePolicies, WrongOutput, simulate
from cluster.plan.simulator.verifier import KvMemory
from cluster.plan.simulator.workload import Arrival, Lengths, draw
from lab.papers.arrivals import poisson
from policies.cost import ForwardCost
from policies.microbatch import MicroBatchParams
from policies.request import Slo
from policies.scheduling.fcfs import fcfs
from policies.speculation.fixed import Fixed, FixedParams
from tests.actors.coordinator.policies import Touring

VERIFY = ForwardCost(alpha=1e-7, gamma=1e-5, delta=0.02, knee=64, gamma_more=2e-4)
DRAFT = ForwardCost(alpha=1e-8, gamma=1e-6, delta=0.001)
LIMITS = Limits(max_batch=8, max_waiting=1000, kv_tokens=100_000)
ONE_BATCH = MicroBatchParams(parts=1)
LENGTHS = Lengths(prompt_mean=64, output_mean=40, longest=256)
ACCEPTANCE = Acceptance(
    {("", name): synthetic(mean) for name, mean in (("small", 0.6), ("large", 0.8), ("ngram", 0.3))}
)


def policies(depth: int = 4, stay: int = 10**9) -> MakePolicies:
    """Requests change lanes after every `stay` tokens."""
    return lambda _calibrations: Policies(fcfs(), Touring(stay), Fixed(FixedParams(depth)))


def cluster(*drafters: str) -> Cluster:
    """A lane of each drafter; `ngram` takes no time."""
    specs = [DrafterSpec(name, name, None if name == "ngram" else DRAFT) for name in drafters]
    return Cluster(VERIFY, KvMemory(100_000), specs, ACCEPTANCE)


def workload(count: int = 40, rate: float = 6.0) -> list[Arrival]:
    return draw(poisson(rate, count, 0), 0, LENGTHS)


def events_of_a_run() -> str:
    events: list[Event] = []
    lanes = cluster("small", "large", "ngram")
    simulate(workload(), lanes, policies(stay=6), LIMITS, seed=3, observe=events.append)
    return hashlib.sha256(repr(events).encode()).hexdigest()


def test_runs_repeat_to_the_last_event_in_any_process() -> None:
    here = events_of_a_run()
    assert here == events_of_a_run()
    script = f"from {__name__} import events_of_a_run; print(events_of_a_run())"
    elsewhere = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == here


def test_plain_decoding_of_one_request_takes_the_cost_models_time() -> None:
    request = Arrival("r0", 0.5, prompt_tokens=100, output_tokens=5, max_tokens=50)
    report = simulate([request], cluster(), policies(), LIMITS)
    (served,) = report.served
    prefill = VERIFY.predict(0, 100)
    decode = sum(VERIFY.predict(100 + i, 1) for i in range(4))
    assert served.ttft_s == pytest.approx(prefill)
    assert served.latency_s == pytest.approx(prefill + decode)
    assert served.tpot_s == pytest.approx(decode / 4)


def test_a_perfect_drafter_gains_its_depth_in_every_round() -> None:
    perfect = Acceptance({("", "small"): DrafterModel((1.0, 1.0), (1.0, 1.0))})
    request = Arrival("r0", 0.0, prompt_tokens=8, output_tokens=101, max_tokens=101)
    lanes = replace(cluster("small"), acceptance=perfect)
    report = simulate([request], lanes, policies(depth=4), LIMITS, pipeline=ONE_BATCH)
    assert report.tally.accepted == report.tally.drafted
    # The prefill yields one token, each of 20 rounds 4 + 1.
    assert report.tally.request_rounds == 21


def test_all_policies_get_the_same_draws() -> None:
    """What is accepted of a chain depends on its first position, not on the schedule."""

    def accepted(depth: int, max_batch: int) -> dict[tuple[str, int], int]:
        at: dict[str, int] = {}
        found: dict[tuple[str, int], int] = {}

        def observe(event: Event) -> None:
            if isinstance(event, Verified):
                for one in event.outcomes:
                    if one.drafted == depth:
                        found[one.request, at.get(one.request, 0)] = one.accepted
                    at[one.request] = at.get(one.request, 0) + one.committed

        limits = LIMITS.model_copy(update={"max_batch": max_batch})
        simulate(workload(30), cluster("small"), policies(depth), limits, observe=observe)
        return found

    wide, narrow, deep = accepted(2, 8), accepted(2, 3), accepted(5, 8)
    assert len(wide) > 200
    assert wide == narrow
    both = wide.keys() & deep.keys()
    assert len(both) > 50
    assert all(wide[start] == min(2, deep[start]) for start in both)


def test_slo_attainment_and_goodput_are_counted_by_request() -> None:
    loose = [replace(request, slo=Slo(tpot_s=10.0)) for request in workload()]
    slo = Slo(ttft_s=0.160, tpot_s=0.024)
    tight = [replace(request, slo=slo) for request in workload(rate=30.0)]
    assert simulate(loose, cluster("small"), policies(), LIMITS).attainment == 1.0
    report = simulate(tight, cluster("small"), policies(), LIMITS)
    assert 0 < report.attainment < 1
    assert report.goodput == pytest.approx(
        sum(one.tokens for one in report.served if one.meets_slo) / report.duration_s
    )


def test_a_closed_loop_keeps_as_many_requests_running_as_clients() -> None:
    most = 0

    def observe(event: Event) -> None:
        nonlocal most
        if isinstance(event, Verified):
            most = max(most, len(event.outcomes))

    at_once = [replace(one, at_s=0.0) for one in workload()]
    report = simulate(at_once, cluster(), policies(), LIMITS, clients=3, observe=observe)
    assert len(report.served) == len(at_once)
    assert most == 3
    # Every request starts when an earlier one ends.
    ends = {0.0} | {one.finished_s for one in report.served}
    assert {one.started_s for one in report.served} <= ends


def test_a_verifier_that_is_off_by_one_position_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TargetOutput.upto
    monkeypatch.setattr(TargetOutput, "upto", lambda self, end: right(self, end + 1)[1:])
    with pytest.raises(WrongOutput):
        simulate(workload(3), cluster("small"), policies(), LIMITS)
