"""One round of `benchmarks.serving.chaos`: streams over HTTP while parts of the system are killed.

It takes minutes, two deployments among them, because it checks the main requirement: no loss of a
process changes a stream.
"""

import asyncio
from collections.abc import Mapping

import pytest

from benchmarks.serving.app import running
from benchmarks.serving.chaos import (
    FAULTS,
    NODE_CPUS,
    PORT,
    STREAMS,
    Outcome,
    Setting,
    request_bodies,
    run_rounds,
)
from benchmarks.serving.stream_identity import StreamIdentity

Outcomes = Mapping[str, Outcome]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """At least half of the streams are under way when a fault strikes, or this fails."""
    bodies, identity = request_bodies(STREAMS), StreamIdentity()
    seen: dict[str, Outcome] = {}
    for ranks in (1, 2):
        setting = Setting(ranks, backend="native")
        faults = [fault for fault in FAULTS if fault.ranks == ranks]
        with running(setting.args(), PORT, setting.replicas, NODE_CPUS) as app:
            of_setting = asyncio.run(run_rounds(app, setting, faults, 1, bodies, identity))
        seen |= {name: outcome for name, (outcome,) in of_setting.items()}
    return seen


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_every_stream_ends_complete_and_identical(outcomes: Outcomes, fault: str) -> None:
    assert outcomes[fault].identical == outcomes[fault].streams == STREAMS
