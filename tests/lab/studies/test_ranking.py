"""Ranking prompts on a model, measured on the built-in one, which was trained for them."""

import pytest
import torch

from actors.coordinator.lengths import RankerText
from cluster.built_in_models import TARGET, model_path
from engine.model import PackedModel
from engine.verifiers.native import NativeVerifier
from lab.studies import ranking

LENGTHS = (3, 60, 9, 40, 20, 5, 30, 12, 50)


def test_stated_lengths_are_ranked_and_groups_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "MAX_TOKENS", 200)
    text = RankerText(model_path(TARGET))
    prompts = [
        text.encode_chat([{"role": "user", "content": f"Count to {length}."}]) for length in LENGTHS
    ]
    model = PackedModel.load(model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=8192)
    records = ranking.measure(NativeVerifier(model), text, prompts)
    found = {record.name: record.value for record in records}
    assert found["ranking/length_only/tau"] > 0.5
    assert found["ranking/length_only/placed"] == 1
    for form in ("rank_only", "prefill_only", "learned"):
        assert -1 <= found[f"ranking/{form}/tau"] <= 1
