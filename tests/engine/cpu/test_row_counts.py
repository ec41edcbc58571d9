"""Forwards of few row counts: how few, at what price, and that nobody sees the added rows."""

import pytest
import torch
from torch import Tensor

from engine.attention.hook import Handler, LayerCall
from engine.cpu.row_counts import (
    computed_rows,
    has_dear_counts,
    step_of,
    with_few_row_counts,
    without_dear_counts,
)


def test_there_are_few_counts_and_few_rows_are_added() -> None:
    counts = {rows: computed_rows(rows) for rows in range(1, 513)}
    assert len(set(counts.values())) < 60
    assert all(rows <= computed <= 9 / 8 * rows for rows, computed in counts.items())
    assert all(computed_rows(computed) == computed for computed in counts.values())


def test_dear_counts_are_not_computed_and_others_stay() -> None:
    assert {without_dear_counts(rows) for rows in range(17, 33)} == {36}
    assert all(without_dear_counts(rows) == rows for rows in (1, 16, 33, 36, 64, 500))
    assert computed_rows(without_dear_counts(17)) == 36
    cpu = torch.device("cpu")
    assert not has_dear_counts(cpu, torch.float32)
    assert has_dear_counts(cpu, torch.bfloat16) == torch.cpu._is_amx_tile_supported()
    assert not has_dear_counts(torch.device("cuda"), torch.bfloat16)


def test_cost_models_are_told_what_is_computed() -> None:
    cpu = torch.device("cpu")
    assert step_of(cpu, torch.float32) == (0, 0)
    if not has_dear_counts(cpu, torch.bfloat16):
        assert step_of(cpu, torch.bfloat16) == (0, 0)
        return
    beyond, least = step_of(cpu, torch.bfloat16)
    for rows in range(1, least + 1):
        computed = computed_rows(without_dear_counts(rows))
        assert computed == (least if rows > beyond else rows)


@pytest.mark.parametrize("dear", [False, True])
@pytest.mark.parametrize(("rows", "asked"), [(19, 3), (16, 16), (133, 17), (5, 0)])
def test_attention_and_the_caller_see_their_own_rows_alone(
    rows: int, asked: int, dear: bool
) -> None:
    table = torch.randn(100, 2, 4, generator=torch.Generator().manual_seed(0))
    counts: list[tuple[int, int]] = []

    def forward(tokens: Tensor, positions: Tensor, wanted: Tensor, attend: Handler) -> Tensor:
        counts.append((len(tokens), len(wanted)))
        hidden = table[tokens] + positions[:, None, None]
        mixed = attend(LayerCall(0, hidden, hidden, hidden, None))  # type: ignore[arg-type]
        return (hidden + mixed).flatten(1)[wanted]

    def attend(call: LayerCall) -> Tensor:
        """Each row is told how many there are."""
        assert len(call.query) == len(call.keys) == len(call.values)
        return call.query * len(call.query)

    tokens = torch.arange(rows) % 100
    wanted = torch.arange(asked)
    arguments = (tokens, torch.arange(rows), wanted, attend)
    said = with_few_row_counts(forward, dear)(*arguments)
    cheap = without_dear_counts if dear else int
    assert counts == [(computed_rows(cheap(rows)), computed_rows(cheap(asked)))]
    torch.testing.assert_close(said, forward(*arguments))
