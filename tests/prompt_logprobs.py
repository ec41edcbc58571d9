"""Whether a prompt's log-probabilities are the stock model's."""

from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedModel

from engine.protocol import TokenLogprobs
from tests import reference


def check(
    model: PreTrainedModel,
    prompt: Sequence[int],
    top_n: int,
    told: Sequence[TokenLogprobs] | None,
) -> None:
    """`told`: of each token but the first, once and in order."""
    assert told is not None
    logits = torch.from_numpy(reference.forward(model, list(prompt)))
    for row, token, one in zip(logits.log_softmax(-1)[:-1], prompt[1:], told, strict=True):
        assert one.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert [value for _, value in one.top] == pytest.approx(
            row.topk(top_n).values.tolist(), abs=1e-4
        )
        # By value, for two of them may be as good as equal.
        assert [value for _, value in one.top] == pytest.approx(
            [float(row[other]) for other, _ in one.top], abs=1e-4
        )
