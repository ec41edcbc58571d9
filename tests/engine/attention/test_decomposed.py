"""Spin's search for the piece length L under a fixed width B."""

import numpy as np
import pytest

from engine.attention.layouts import least_padded_length


def padding(lengths: list[int], length: int) -> tuple[int, int]:
    """Rows and padded tokens if no piece is longer than `length`."""
    rows = sum(-(-one // length) for one in lengths)
    return rows, rows * length - sum(lengths)


def test_a_request_twice_as_long_as_the_others_is_halved() -> None:
    # As in Spin's Figure 9: two sub-requests of A align with B and C, without padding.
    assert least_padded_length(np.array([10, 5, 5]), width=4) == 5


def test_the_search_equals_trying_every_length() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths = rng.integers(1, 200, rng.integers(1, 9)).tolist()
        width = len(lengths) + int(rng.integers(0, 9))
        tried = [padding(lengths, length) for length in range(1, max(lengths) + 1)]
        least = min(padded for rows, padded in tried if rows <= width)
        rows, padded = padding(lengths, least_padded_length(np.array(lengths), width))
        assert rows <= width
        assert padded == least


def test_of_equally_padded_lengths_the_longest_is_chosen() -> None:
    assert least_padded_length(np.array([64, 64]), width=8) == 64


def test_fewer_rows_than_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="3 requests need as many rows"):
        least_padded_length(np.array([4, 4, 4]), width=2)
