"""Spin's g̃ and the priors below it."""

import pytest

from policies.selection.mean_goodput import MeanGoodput
from tests.policies.selection.play import lane


def test_a_pair_a_drafter_and_the_fleet_stand_in_for_each_other_in_this_order() -> None:
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
    assert goodput.estimate("r", "x") == pytest.approx(40.0)  # what it taught the others stays


def test_lanes_of_one_drafter_have_one_column_each_of_its_values() -> None:
    goodput = MeanGoodput()
    goodput.observe("r", "x", 10.0)
    goodput.observe("s", "y", 4.0)
    lanes = [lane("y"), lane("x"), lane("y")]
    assert goodput.matrix(["r", "s"], lanes).tolist() == [[4.0, 10.0, 4.0], [4.0, 10.0, 4.0]]
