"""Spin's search for the row length L under a fixed width B."""

import numpy as np
import pytest

from engine.attention.decomposed import least_padded_length


def padding(lengths: list[int], length: int) -> tuple[int, int]:
    """Rows and padded tokens when nothing is longer than `length`."""
    rows = sum(-(-one // length) for one in lengths)
    return rows, rows * length - sum(lengths)


def test_a_request_twice_as_long_is_halved_beside_the_others() -> None:
    # As in Figure 9: two sub-requests of A align with B and C, and nothing is padded.
    assert least_padded_length(np.array([10, 5, 5]), width=4) == 5


def test_search_equals_trying_every_length() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths = rng.integers(1, 200, rng.integers(1, 9)).tolist()
        width = len(lengths) + int(rng.integers(0, 9))
        tried = [padding(lengths, length) for length in range(1, max(lengths) + 1)]
        least = min(padded for rows, padded in tried if rows <= width)
        rows, padded = padding(lengths, least_padded_length(np.array(lengths), width))
        assert rows <= width
        assert padded == least


def test_of_equally_padded_lengths_the_longest_copies_queries_least() -> None:
    assert least_padded_length(np.array([64, 64]), width=8) == 64


def test_fewer_rows_than_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="3 requests need as many rows"):
        least_padded_length(np.array([4, 4, 4]), width=2)
