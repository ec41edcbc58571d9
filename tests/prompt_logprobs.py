"""Checks the log-probabilities of a prompt or an output against the stock model's."""

from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedModel

from engine.protocol import TokenLogprobs
from tests import reference


def check(
    model: PreTrainedModel,
    tokens: Sequence[int],
    top_n: int,
    reported: Sequence[TokenLogprobs] | None,
    first: int = 1,
) -> None:
    """`reported`: one entry per token from `first` on, in order."""
    assert reported is not None
    rows = torch.from_numpy(reference.forward(model, list(tokens))).log_softmax(-1)[first - 1 : -1]
    for row, token, one in zip(rows, tokens[first:], reported, strict=True):
        assert one.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert [value for _, value in one.top] == pytest.approx(
            row.topk(top_n).values.tolist(), abs=1e-4
        )
        # By value, as two tokens may be nearly equal.
        assert [value for _, value in one.top] == pytest.approx(
            [float(row[other]) for other, _ in one.top], abs=1e-4
        )
