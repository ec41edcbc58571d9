"""An open load with SLOs, real and simulated: who meets them, and in whose time."""

import pytest

from benchmarks.serving.local import RequestTiming
from benchmarks.serving.requests import mixed_requests
from lab.studies.reality_load import Load, real_outcome, slowed
from policies.request import Slo

OFFERED = Load(mixed_requests(3), (1.0, 2.0, 3.0), Slo(ttft_s=0.5, tpot_s=0.1))
SERVED = [
    RequestTiming("a", tokens=11, ttft_s=0.4, seconds=1.4),
    RequestTiming("a", tokens=11, ttft_s=0.6, seconds=1.6),
    RequestTiming("a", tokens=11, ttft_s=0.4, seconds=2.0),
]
"""The first meets its SLO, the second misses its TTFT, the third its TPOT."""


def test_goodput_is_of_the_requests_that_meet_both_their_slos() -> None:
    outcome = real_outcome(SERVED, OFFERED)
    assert outcome.attainment == pytest.approx(1 / 3)
    assert outcome.goodput == pytest.approx(11 / (5.0 - 1.0))
    assert outcome.mean_latency_s == pytest.approx(5.0 / 3)


def test_a_machine_that_stands_still_half_of_the_time_has_half_of_the_time_for_all() -> None:
    arrivals = slowed(OFFERED, SERVED, pauses=2.0)
    assert [one.at_s for one in arrivals] == [0.5, 1.0, 1.5]
    assert [one.output_tokens for one in arrivals] == [11, 11, 11]
    assert {one.slo for one in arrivals} == {Slo(ttft_s=0.25, tpot_s=0.05)}
