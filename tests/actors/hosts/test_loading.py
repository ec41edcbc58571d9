"""A target as its spec says: dtype, warnings, and the attention layout."""

import logging

import pytest
import torch

from actors.hosts.loading import load_verifier, target_dtype
from actors.hosts.specs import TargetSpec
from cluster.built_in_models import TARGET, model_path


@pytest.mark.parametrize(
    ("dtype", "has_bf16", "warned"),
    [
        (torch.bfloat16, False, True),
        (torch.bfloat16, True, False),
        (torch.float32, False, False),
    ],
)
def test_bf16_without_bf16_products_warns_and_names_the_remedy(
    dtype: torch.dtype,
    has_bf16: bool,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("actors.hosts.loading.has_bf16_products", lambda: has_bf16)
    with caplog.at_level(logging.WARNING, logger="spindle"):
        load_verifier(TargetSpec(model_path(TARGET), dtype, kv_tokens=2048))
    messages = [record.getMessage() for record in caplog.records]
    assert any("set target.dtype to float32" in message for message in messages) == warned


@pytest.mark.parametrize("fast", [torch.bfloat16, torch.float32])
def test_auto_is_what_the_device_multiplies_fast(
    fast: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.hosts.loading.fast_dtype", lambda _device: fast)
    assert target_dtype(TargetSpec(model_path(TARGET), None, kv_tokens=2048)) == fast
    assert target_dtype(TargetSpec(model_path(TARGET), torch.float32, 2048)) == torch.float32
