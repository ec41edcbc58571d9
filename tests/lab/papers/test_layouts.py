"""Spin's two layouts equal attention by its definition, and its search for the piece length L finds
the least padding under a fixed width B."""

import numpy as np
import pytest
import torch

from engine.attention.context import Scoring
from lab.papers.layouts import LAYOUTS, least_padded_length
from tests.engine.attention.batches import random_batch, random_tensors, reference


@pytest.mark.parametrize("layout", ["padded", "decomposed"])
def test_the_layouts_equal_attention_by_its_definition(layout: str) -> None:
    rng = np.random.default_rng(7)
    for group in (1, 2, 4):
        batch = random_batch(rng, 8, group=group)
        tensors = random_tensors(rng, batch)
        plan = LAYOUTS[layout](batch)
        for scoring in (Scoring(0.25, window=9), Scoring(0.25)):
            expected = reference(batch, *tensors, scoring)
            mixed = plan.attend(*tensors, scoring)
            torch.testing.assert_close(mixed.double(), expected, atol=1e-4, rtol=0)


def padding(lengths: list[int], length: int) -> tuple[int, int]:
    """Rows and padded tokens if no piece is longer than `length`."""
    rows = sum(-(-one // length) for one in lengths)
    return rows, rows * length - sum(lengths)


def test_the_search_equals_trying_every_length() -> None:
    # As in Spin's Figure 9: two sub-requests of A align with B and C, without padding.
    assert least_padded_length(np.array([10, 5, 5]), width=4) == 5
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths = rng.integers(1, 200, rng.integers(1, 9)).tolist()
        width = len(lengths) + int(rng.integers(0, 9))
        tried = [padding(lengths, length) for length in range(1, max(lengths) + 1)]
        least = min(padded for rows, padded in tried if rows <= width)
        rows, padded = padding(lengths, least_padded_length(np.array(lengths), width))
        assert rows <= width
        assert padded == least
