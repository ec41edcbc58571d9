"""Our Muon is torch's, at another precision and with matrices of one shape together."""

import pytest
import torch

from engine.learning import muon
from engine.learning.muon import Muon


@pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "fp32"])
def test_steps_are_those_of_torch(bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "has_bf16_products", lambda: bf16)
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in [(24, 8), (8, 24), (24, 8), (16, 16)]]
    ours, theirs = ([torch.nn.Parameter(m.clone()) for m in start] for _ in range(2))
    optimizers = (
        Muon(ours, lr=0.02, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1),
    )
    for _ in range(5):
        for pair in zip(ours, theirs, strict=True):
            gradient = torch.randn(pair[0].shape)
            for matrix in pair:
                matrix.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    for mine, reference, before in zip(ours, theirs, start, strict=True):
        moved = (reference - before).norm()
        assert moved > 0.1
        assert (mine - reference).norm() < 0.05 * moved  # torch's own is in bf16 always
