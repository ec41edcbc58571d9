"""What the cost of watching is judged by."""

import pytest

from benchmarks.report import Ratio
from lab.studies.watching import PARTS, Segment, judged, report, within


def segments(seconds: float, share: float, rounds: int = 50) -> list[Segment]:
    """Each round takes so long."""
    shares = dict.fromkeys(PARTS, share)
    return [Segment(1 / seconds, 2 / seconds, [seconds] * rounds, shares) for _ in range(20)]


def test_a_slower_mode_has_a_ratio_below_1_in_all_that_is_compared() -> None:
    found = {"off": segments(0.010, 0.0), "metrics": segments(0.0102, 0.001)}
    records = {one.name.removeprefix("watching/"): one.value for one in report(found)}
    for name in ("goodput", "speed_of_equal_rounds", "tokens_per_cpu_second"):
        assert records[f"metrics/{name}"] == pytest.approx(1 / 1.02)
    assert records["share/observe"] == pytest.approx(0.1)
    assert within(report(found))
    assert not within(report({**found, "metrics": segments(0.0102, 0.004)}))


def test_segments_with_other_rounds_are_not_compared_round_by_round() -> None:
    found = {"off": segments(0.01, 0.0), "metrics": segments(0.01, 0.0, rounds=51)}
    assert not any("rounds" in one.name for one in report(found))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.992, 1.004, "loses at most 1%"),
        (0.97, 0.985, "loses more than 1%"),
        (0.97, 1.02, "does not tell whether it loses 1%"),
    ],
)
def test_an_interval_tells_or_does_not(low: float, high: float, verdict: str) -> None:
    assert judged(Ratio((low + high) / 2, low, high)) == verdict
