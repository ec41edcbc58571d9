"""Padded row counts are few and cheap, and padding changes no result."""

import pytest
import torch
from torch import Tensor

from engine.attention.hook import Handler, LayerCall
from engine.cpu.row_counts import (
    avoid_slow_row_count,
    has_slow_row_counts,
    padded_row_count,
    with_few_row_counts,
)
from engine.hidden_states import HiddenStates


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


@pytest.mark.parametrize("avoid_slow", [False, True])
@pytest.mark.parametrize(("rows", "wanted_rows"), [(19, 3), (16, 16), (133, 17), (5, 0)])
def test_attention_and_the_caller_see_no_padding(
    rows: int, wanted_rows: int, avoid_slow: bool
) -> None:
    table = torch.randn(100, 2, 4, generator=torch.Generator().manual_seed(0))
    counts: list[tuple[int, int]] = []

    def forward(
        tokens: Tensor,
        positions: Tensor,
        wanted: Tensor,
        attend: Handler,
        states: HiddenStates | None,
    ) -> Tensor:
        assert states is None
        counts.append((len(tokens), len(wanted)))
        hidden = table[tokens] + positions[:, None, None]
        mixed = attend(LayerCall(0, hidden, hidden, hidden, None))  # type: ignore[arg-type]
        return (hidden + mixed).flatten(1)[wanted]

    def attend(call: LayerCall) -> Tensor:
        """A result that depends on the number of rows."""
        assert len(call.query) == len(call.keys) == len(call.values)
        return call.query * len(call.query)

    tokens = torch.arange(rows) % 100
    wanted = torch.arange(wanted_rows)
    arguments = (tokens, torch.arange(rows), wanted, attend, None)
    logits = with_few_row_counts(forward, avoid_slow)(*arguments)
    avoid = avoid_slow_row_count if avoid_slow else int
    assert counts == [(padded_row_count(avoid(rows)), padded_row_count(avoid(wanted_rows)))]
    torch.testing.assert_close(logits, forward(*arguments))
