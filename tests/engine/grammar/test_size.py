"""What bounded repetitions of patterns count for."""

import pytest

from engine.grammar.size import repetitions


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("a{3}", 3),
        ("a{3,}", 3),
        ("a{3,5}", 5),
        ("a{ 3 , 5 }b{2}", 7),
        ("a{ 3 , }", 3),
        ("a{1000}", 128),
        ("a{1," + "9" * 5000 + "}", 128),
        ("a{,3}", 0),
        ("{x{", 0),
        ("{1," + " " * 60_000, 0),
        ("{1," * 20_000, 0),
        ("{" + "1" * 60_000, 0),
    ],
)
def test_repetitions_count_up_to_a_bound_each(pattern: str, states: int) -> None:
    """The last three once took half a minute: they are the beginning of a repetition in very many
    ways, and the end of none."""
    assert repetitions(pattern) == states
