"""What a start refuses before any process runs."""

import importlib.util

import pytest

from deployments.app import build


def test_a_target_on_vllm_needs_vllm_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="make serve TARGET=vllm"):
        build({"target": {"model": "zoo/target", "backend": "vllm"}, "drafters": []})
