"""Forwards of fixed shapes say what the stock model says, and what the packed forward says."""

import numpy as np
import pytest
import torch

from engine.model import PackedModel, Segment
from engine.step_graphs import ROWS, StepGraphs
from tests.checkpoints import llama
from tests.engine.families import SUPPORTED, build
from tests.engine.random_rounds import largest_error


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each forward that was offered, whether a fixed shape took it."""
    taken: list[bool] = []
    real = StepGraphs.forward

    def noted(graphs: StepGraphs, *batch: object) -> torch.Tensor | None:
        logits = real(graphs, *batch)  # type: ignore[arg-type]
        taken.append(logits is not None)
        return logits

    monkeypatch.setattr(StepGraphs, "forward", noted)
    return taken


@pytest.mark.parametrize("family", SUPPORTED)
def test_family_equals_its_stock_model(family: str, answered: list[bool]) -> None:
    model = PackedModel(build(SUPPORTED[family]), kv_tokens=2048, static_steps=True)
    assert largest_error(model, model.hf_model, np.random.default_rng(1)) < 1e-4
    assert sum(answered) >= len(answered) / 2


def test_a_forward_that_fits_no_shape_runs_packed(answered: list[bool]) -> None:
    model = PackedModel(llama(), kv_tokens=512, static_steps=True)
    tokens = np.arange(ROWS[-1] + 1, dtype=np.int32)
    model.kv.open("long", [])
    logits = model.forward([Segment("long", tokens, tokens, None, tokens[-1:])])
    assert answered[-1] is False
    packed = PackedModel(llama(), kv_tokens=512)
    packed.kv.open("long", [])
    torch.testing.assert_close(
        logits, packed.forward([Segment("long", tokens, tokens, None, tokens[-1:])])
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
def test_on_a_gpu_graphs_take_part(answered: list[bool], caplog: pytest.LogCaptureFixture) -> None:
    model = PackedModel(llama().to("cuda"), kv_tokens=2048, static_steps=True)
    assert largest_error(model, model.hf_model, np.random.default_rng(1)) < 1e-3
    assert any(answered)
    assert "without CUDA graphs" not in caplog.text
