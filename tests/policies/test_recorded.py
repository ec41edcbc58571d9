"""Moving and renaming code changes no decision: the recorded runs decide as they did."""

import pytest

from tests.policies.decisions import ROUNDING, decisions_of, first_difference
from tests.policies.recorded_runs import RUNS, recorded


@pytest.mark.parametrize("name", RUNS)
def test_decides_as_recorded(name: str) -> None:
    lines, expected = decisions_of(RUNS[name]), recorded(name)
    at = first_difference(lines, expected)
    assert at is None, (
        f"decision {at} is {lines[at : at + 1]}, recorded is {expected[at : at + 1]}; if that is "
        "meant, record again: python -m tests.policies.recorded_runs"
    )


def test_rounding_changes_no_recorded_decision_but_a_real_difference_does() -> None:
    run, expected = RUNS["mixed_load_4"], recorded("mixed_load_4")
    assert decisions_of(run, ROUNDING) == expected
    assert decisions_of(run, 1e-2) != expected
