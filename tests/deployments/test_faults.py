"""One round of `benchmarks.chaos` in short: streams over HTTP while parts of the system are killed.

Lost drafters, ranks and routers are tested where they cost less (test_fleet.py, test_routing.py).
"""

import asyncio
from collections.abc import Mapping

import pytest

from benchmarks.chaos import FAULTS, NODE_CPUS, PORT, Outcome, Setting, requests, series
from benchmarks.serving.app import running
from benchmarks.serving.judge import Judge

STREAMS = 12
STRUCK = ("verifier", "replica", "node")


@pytest.fixture(scope="module")
def outcomes() -> Mapping[str, list[Outcome]]:
    """At least half of the streams are under way when a fault strikes, or this fails."""
    setting = Setting(ranks=1, backend="native")
    faults = [fault for fault in FAULTS if fault.name in STRUCK]
    with running(setting.args(), PORT, setting.replicas, NODE_CPUS) as app:
        return asyncio.run(series(app, setting, faults, 1, requests(STREAMS), Judge()))


@pytest.mark.parametrize("fault", STRUCK)
def test_every_stream_ends_complete_and_as_if_nothing_had_happened(
    outcomes: Mapping[str, list[Outcome]], fault: str
) -> None:
    (outcome,) = outcomes[fault]
    assert outcome.identical == outcome.streams == STREAMS
