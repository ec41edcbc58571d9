"""A target as its config says: dtype, warnings, and the attention layout."""

import logging

import pytest
import torch

from actors.hosts.loading import load_verifier, target_dtype
from cluster.built_in_models import TARGET, model_path
from cluster.config.models import Dtype, TargetConfig


@pytest.mark.parametrize(
    ("dtype", "has_bf16", "warned"),
    [("bfloat16", False, True), ("bfloat16", True, False), ("float32", False, False)],
)
def test_bf16_without_bf16_products_warns_and_names_the_remedy(
    dtype: Dtype,
    has_bf16: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("actors.hosts.loading.has_bf16_products", lambda: has_bf16)
    with caplog.at_level(logging.WARNING, logger="spindle"):
        load_verifier(TargetConfig(dtype=dtype, kv_tokens=2048))
    messages = [record.getMessage() for record in caplog.records]
    assert any("set target.dtype to float32" in message for message in messages) == warned


@pytest.mark.parametrize("fast", [torch.bfloat16, torch.float32])
def test_auto_is_what_the_device_multiplies_fast(
    fast: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.hosts.loading.fast_dtype", lambda _device: fast)
    checkpoint = model_path(TARGET)
    assert target_dtype(TargetConfig(dtype="auto"), checkpoint) == fast
    assert target_dtype(TargetConfig(dtype="float32"), checkpoint) == torch.float32
