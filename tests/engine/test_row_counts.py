"""Forwards of few row counts: how few, at what price, and that nobody sees the added rows."""

import pytest
import torch
from torch import Tensor

from engine.attention.hook import Handler, LayerCall
from engine.row_counts import computed_rows, with_few_row_counts


def test_there_are_few_counts_and_few_rows_are_added() -> None:
    counts = {rows: computed_rows(rows) for rows in range(1, 513)}
    assert len(set(counts.values())) < 60
    assert all(rows <= computed <= 9 / 8 * rows for rows, computed in counts.items())
    assert all(computed_rows(computed) == computed for computed in counts.values())


@pytest.mark.parametrize(("rows", "asked"), [(19, 3), (16, 16), (133, 17), (5, 0)])
def test_attention_and_the_caller_see_their_own_rows_alone(rows: int, asked: int) -> None:
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
    said = with_few_row_counts(forward)(*arguments)
    assert counts == [(computed_rows(rows), computed_rows(asked))]
    torch.testing.assert_close(said, forward(*arguments))
