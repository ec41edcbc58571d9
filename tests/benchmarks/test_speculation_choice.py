"""Speculation policies on the command lines of benchmarks."""

import argparse

import pytest

from benchmarks.speculation_choice import SpeculationChoice


def test_options_are_numbers_or_words() -> None:
    choice = SpeculationChoice.parse("specserve:max_length=3,eliminate=false")
    assert (choice.name, choice.options) == ("specserve", {"max_length": 3, "eliminate": False})
    assert SpeculationChoice.parse("specserve").options == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fixd", "there is no 'fixd'; choose one of off, fixed"),
        ("fixed:depth=3", "there is no option 'depth'; it has length"),
        ("fixed:3", "'3' is not OPTION=VALUE"),
    ],
)
def test_errors_name_what_there_is(text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        SpeculationChoice.parse(text)
