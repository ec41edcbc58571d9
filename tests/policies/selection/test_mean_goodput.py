"""Spin's g̃ and its priors."""

import pytest

from policies.selection.mean_goodput import MeanGoodput
from tests.policies.selection.play import lane


def test_estimates_fall_back_from_pair_to_drafter_to_all_drafters() -> None:
    goodput = MeanGoodput()
    assert goodput.estimate("r", "x") == 0.0
    goodput.observe("r", "x", 10.0)
    goodput.observe("r", "x", 20.0)
    goodput.observe("s", "x", 90.0)
    goodput.observe("s", "y", 4.0)
    assert goodput.estimate("r", "x") == 15.0
    assert goodput.estimate("r", "y") == 4.0
    assert goodput.estimate("new", "x") == 40.0
    assert goodput.estimate("new", "z") == 31.0
    goodput.forget("r")
    assert goodput.estimate("r", "x") == pytest.approx(
        40.0
    )  # the pooled mean keeps the observations of r


def test_each_lane_has_a_column_with_its_drafters_estimates() -> None:
    goodput = MeanGoodput()
    goodput.observe("r", "x", 10.0)
    goodput.observe("s", "y", 4.0)
    lanes = [lane("y"), lane("x"), lane("y")]
    assert goodput.matrix(["r", "s"], lanes).tolist() == [[4.0, 10.0, 4.0], [4.0, 10.0, 4.0]]


def test_statistics_of_another_version_are_left_out() -> None:
    goodput = MeanGoodput()
    goodput.observe("r", "x", 10.0)
    goodput.pool({"x": [90.0, 3.0], "y": [5.0], "z": [1.0] * 36})
    assert goodput.estimate("new", "x") == 25.0
    assert goodput.estimate("new", "y") == goodput.estimate("new", "z") == 25.0  # of all drafters
