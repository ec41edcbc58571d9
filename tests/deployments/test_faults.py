"""One round of `benchmarks.serving.chaos`: streams over HTTP while parts of the system are killed,
and among requests that raise inside it.

It takes minutes, because it checks the main requirement: no loss of a process changes a stream. The
fault of a tensor-parallel rank, which needs a deployment of its own, is in
tests/actors/hosts/test_fleet.py.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from benchmarks.processes import environment
from benchmarks.serving.app import running
from benchmarks.serving.chaos import (
    PORT,
    STREAMS,
    Outcome,
    request_bodies,
    run_rounds,
    run_undisturbed,
)
from benchmarks.serving.faults import FAULTS, NODE_CPUS, Setting
from benchmarks.serving.poison import (
    MOST_DRAFTERS,
    MOST_VERIFIERS,
    RAISING,
    VERIFIER_PROCESS,
    DrillOutcome,
    build_poisoned,
    drill,
)
from benchmarks.serving.stream_identity import StreamIdentity
from tests.deployments.serving import end_cluster

SETTING = Setting(1, "native", replicas=2)
OF_SETTING = ("router", "node")
"""A node takes a replica and its hosts; drafters and verifiers are killed by poisoned requests."""
LOST_NODES = {"RAY_health_check_period_ms": "1000"}
"""Ray asks nodes five times before it gives one up: every second instead of every third."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    faults: Mapping[str, Outcome]
    raising: DrillOutcome
    killing: DrillOutcome


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """At least half of the streams are under way when a fault strikes, or this fails."""
    end_cluster()
    bodies, identity = request_bodies(STREAMS), StreamIdentity()
    faults = [fault for fault in FAULTS if fault.name in OF_SETTING]
    with (
        environment(LOST_NODES),
        running(SETTING.args(), PORT, SETTING.replicas, NODE_CPUS, build_poisoned) as app,
    ):
        expected = asyncio.run(run_undisturbed(app, SETTING, bodies))
        raising, killing = (
            asyncio.run(drill(app, bodies, expected, identity, kinds))
            for kinds in (RAISING, (VERIFIER_PROCESS,))
        )
        rounds = asyncio.run(run_rounds(app, SETTING, faults, 1, bodies, expected, identity))
    return Outcomes({name: outcome for name, (outcome,) in rounds.items()}, raising, killing)


@pytest.mark.parametrize("fault", OF_SETTING)
def test_every_stream_ends_complete_and_identical(outcomes: Outcomes, fault: str) -> None:
    outcome = outcomes.faults[fault]
    assert outcome.identical == outcome.streams == STREAMS


def test_requests_that_raise_inside_or_kill_drafters_harm_no_other(outcomes: Outcomes) -> None:
    raising = outcomes.raising
    assert raising.identical == raising.streams == STREAMS
    assert not raising.wrong, "an error for those that fail, a whole stream for those that need not"
    assert not raising.replicas_lost
    assert not raising.verifiers_lost
    assert 1 <= raising.drafters_lost <= MOST_DRAFTERS


def test_a_request_that_kills_verifiers_is_given_up_with_the_second(outcomes: Outcomes) -> None:
    killing = outcomes.killing
    assert killing.identical == killing.streams == STREAMS
    assert not killing.wrong
    assert not killing.replicas_lost
    assert killing.verifiers_lost == MOST_VERIFIERS
