"""The number of replicas that the signals of the present ones require."""

from typing import Any

import pytest
from ray.serve.config import AutoscalingContext

from actors.coordinator.events import Left, Verified
from actors.coordinator.stream import Statistics
from deployments.replica.autoscaling_signals import AutoscalingSignals
from deployments.scaling import QueueGoodputAttainment
from engine.sampling.params import SamplingParams
from policies.request import RequestView, RoundOutcome, Slo
from tests.deployments.serving import (
    ARGS,
    application,
    eventually,
    replica_states,
    replicas,
    request,
)

MAX_BATCH = 8
ENDLESS = SamplingParams(max_tokens=1900, ignore_eos=True, seed=1)
Signal = dict[str, dict[str, float]]


def wanted(signals: Signal, state: dict[str, Any] | None = None) -> tuple[float, dict[str, Any]]:
    policy = QueueGoodputAttainment(MAX_BATCH, target_waiting=4, target_attainment=0.9)
    replicas = len(next(iter(signals.values()), {})) or 1
    context = AutoscalingContext(
        deployment_id=None,
        deployment_name="Replica",
        app_name="spindle",
        current_num_replicas=replicas,
        target_num_replicas=replicas,
        running_replicas=[],
        total_num_requests=0.0,
        total_queued_requests=0.0,
        aggregated_metrics=signals,
        raw_metrics={},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=9,
        policy_state=state or {},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=None,
    )
    return policy(context)


def signals(*replicas: tuple[float, float, float, float]) -> Signal:
    """(running, waiting, goodput, attainment) of each."""
    names = ("running", "waiting", "goodput", "attainment")
    return {
        name: {str(i): values[j] for i, values in enumerate(replicas)}
        for j, name in enumerate(names)
    }


@pytest.mark.parametrize(
    ("replicas", "expected"),
    {
        "room": ([(3, 0, 50, 1)], 1),
        "full": ([(8, 4, 50, 1)], 1),
        "one too many wait": ([(8, 5, 50, 1)], 2),
        "a burst": ([(8, 40, 50, 1)], 4),
        "spread over two": ([(8, 5, 50, 1), (0, 0, 0, 1)], 2),
        "two for what one can hold": ([(2, 0, 50, 1), (2, 0, 50, 1)], 1),
        "SLOs are missed": ([(2, 0, 50, 0.5)], 2),
        "SLOs were missed, nothing runs": ([(0, 0, 0, 0.5), (0, 0, 0, 1)], 1),
    }.values(),
)
def test_waiting_requests_and_missed_slos_add_replicas(
    replicas: list[tuple[float, float, float, float]], expected: int
) -> None:
    assert wanted(signals(*replicas))[0] == expected


def test_replicas_that_the_present_goodput_needs_are_kept() -> None:
    """Two with a goodput of 80 each, where one has never reached more than 100."""
    _, state = wanted(signals((8, 3, 100, 1)))
    count, state = wanted(signals((5, 0, 80, 1), (5, 0, 80, 1)), state)
    assert count == 2
    count, _ = wanted(signals((3, 0, 40, 1), (3, 0, 40, 1)), state)
    assert count == 1


def test_a_replica_reports_its_queue_goodput_and_slo_attainment() -> None:
    reported = AutoscalingSignals()
    outcome = RoundOutcome("a", None, 3, 3, 3, 4, 0.1)
    for at_s in (1.0, 12.0, 14.0):
        reported.observe(Verified(at_s, 0.1, 0.0, 10, 4, 0, (outcome,)))
    for ttft_s in (0.1, 0.3):
        view = RequestView("a", 10.0, 5, 9, Slo(ttft_s=0.2), generated=9, first_token_s=10 + ttft_s)
        reported.observe(Left(12.0, view, "stop", Statistics(ttft_s=ttft_s), internal=False))
    read = reported.read([Statistics(queue_s=0.1), Statistics(), Statistics()], now=14.0)
    assert read == {"running": 1, "waiting": 2, "goodput": 8 / 10, "attainment": 0.5}
    later = reported.read([Statistics(queue_s=0.1)], now=1000.0)
    assert later["attainment"] == 1, "or a load without SLOs would keep every replica for ever"


def test_serve_adds_a_replica_while_requests_wait() -> None:
    limits = {"max_batch": 1, "max_waiting": 8, "silent_ingress_s": 120}
    scaling = {"max_replicas": 2, "target_waiting": 1, "upscale_delay_s": 0}
    with application({**ARGS, "limits": limits, "scaling": scaling}):
        held = [
            replicas()
            .options(stream=True)
            .stream.remote(request(f"waits {number}", params=ENDLESS))
            for number in range(6)
        ]
        # Unread, the first one pauses, and the others wait for it.
        assert [next(stream)["kind"] for stream in held] == ["accepted"] * 6

        eventually(lambda: sum(replica_states().values()) == 2, "a second replica", within_s=60)
        for stream in held:  # else the replica drains for as long as they may take
            stream.cancel()
