"""Padded row counts are few and cheap, and padding changes no result."""

import torch

from engine.cpu.row_counts import (
    avoid_slow_row_count,
    has_slow_row_counts,
    padded_row_count,
)


def test_padded_counts_are_few_and_add_at_most_an_eighth() -> None:
    counts = {rows: padded_row_count(rows) for rows in range(1, 513)}
    assert len(set(counts.values())) < 60
    assert all(rows <= padded <= 9 / 8 * rows for rows, padded in counts.items())
    assert all(padded_row_count(padded) == padded for padded in counts.values())


def test_slow_counts_are_replaced_by_36_and_others_stay() -> None:
    assert {avoid_slow_row_count(rows) for rows in range(17, 33)} == {36}
    assert all(avoid_slow_row_count(rows) == rows for rows in (1, 16, 33, 36, 64, 500))
    assert padded_row_count(avoid_slow_row_count(17)) == 36
    cpu = torch.device("cpu")
    assert not has_slow_row_counts(cpu, torch.float32)
    assert has_slow_row_counts(cpu, torch.bfloat16) == torch.cpu._is_amx_tile_supported()
    assert not has_slow_row_counts(torch.device("cuda"), torch.bfloat16)
