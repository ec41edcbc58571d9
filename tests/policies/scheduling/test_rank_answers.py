"""Ranking answers are parsed in every format, and never trusted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.scheduling.rank_answers import (
    competition_ranks,
    ranks_from_logits,
    read_lengths,
    read_ranks,
)

# RankOnly and LengthOnly


@pytest.mark.parametrize(
    "answer",
    [
        "<<[0]2,[1]1,[2]3>>",
        "<<[2]3,[0]2,[1]1>>",
        "Sure! Here are the 3 ranks: <<[0]2, [1]1, [2]3>> as asked in 2024.",
        "[0]: 2\n[1]: 1\n[2]: 3",
        "[ 0 ]=2 [ 1 ]=1 [ 2 ]=3",
        "<<[0]2,[1]1,[2]3",
        "<<[0]2,[1]1,[2]3>> <<[0]2,[1]1,[2]3>>",
        "<<2,1,3>>",
        "I think: << 2, 1, 3 >> of 3",
        "2,1,3",
    ],
)
def test_an_answer_is_parsed_in_each_of_its_formats(answer: str) -> None:
    assert read_ranks(answer, 3) == [2, 1, 3]


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        ("[0]2,[2]3", [2, None, 3]),  # missing
        ("[0]2,[1]1,[1]3,[2]3", [2, None, 3]),  # doubled, and at odds
        ("[0]2,[1]1,[2]3,[7]1", [2, 1, 3]),  # never asked about
        ("[0]2,[1]9,[2]0", [2, None, None]),  # no such rank
        ("[0]2,[1]one,[2]3", [2, None, 3]),
        ("<<2,1>>", [None, None, None]),  # whose ranks are these?
        ("2,1,3,4", [None, None, None]),
        ("I cannot rank these requests.", [None, None, None]),
        ("", [None, None, None]),
    ],
)
def test_a_position_without_a_clear_value_gets_none(
    answer: str, values: list[float | None]
) -> None:
    assert read_ranks(answer, 3) == values


def test_lengths_are_parsed_with_leading_zeros_and_up_to_a_limit() -> None:
    assert read_lengths("[0]045,[1]310,[2]000,[3]99999999", 4) == [45, 310, None, None]


def test_items_times_tokens_per_item_are_a_length() -> None:
    assert read_lengths("[0]17x006,[1]1x310,[2] 4 x 12,[3]45", 4) == [102, 310, 48, 45]
    assert read_lengths("[0]17x,[1]1x310,[2]17x000", 3) == [None, 310, None]


def test_the_last_number_of_a_cut_answer_is_ignored() -> None:
    for cut in ("[0]17x006,[1]31x00", "[0]17x006,[1]31x", "[0]17x006,[1]3", "[0]17x006,["):
        assert read_lengths(cut, 2, cut=True) == [102, None]
    assert read_lengths("[0]045,[1]31", 2) == [45, 31]
    assert read_lengths("[0]045,[1]31", 2, cut=True) == [45, None]
    assert read_lengths("[0]045,[1]310,", 2, cut=True) == [45, 310]


@given(st.text(alphabet="0123456789[]<>,:= \n-x٣", max_size=200), st.integers(1, 10))
def test_any_text_is_parsed_without_error(answer: str, size: int) -> None:
    for values in (read_ranks(answer, size), read_lengths(answer, size, cut=True)):
        assert len(values) == size
        assert all(value is None or value >= 1 for value in values)
    assert all(value is None or value <= size for value in read_ranks(answer, size))


# PrefillOnly


def test_the_likeliest_position_has_rank_1() -> None:
    assert ranks_from_logits([-3.0, 5.0, 0.5, 5.0]) == [4, 1, 3, 1]
    assert ranks_from_logits([0.0, math.nan, -math.inf]) == [1, None, 2]


@given(st.lists(st.none() | st.integers(0, 5), max_size=10))
def test_competition_ranks_share_and_skip(values: list[int | None]) -> None:
    ranks = competition_ranks(values)
    for value, rank in zip(values, ranks, strict=True):
        smaller = [other for other in values if other is not None and value is not None]
        expected = 1 + sum(other < value for other in smaller) if value is not None else None
        assert rank == expected
