"""What the process of a vLLM target preloads."""

import pytest

from engine.verifiers.vllm.environment import process_environment


def test_only_one_openmp_library_is_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM preloads GNU's in a process that imports it, and refuses to start with both."""
    monkeypatch.setenv("LD_PRELOAD", "/lib/libtcmalloc.so.4:/opt/torch.libs/libgomp-1.so")
    preloaded = process_environment().get("LD_PRELOAD")
    if preloaded is None:
        pytest.skip("Intel's OpenMP is not installed")
    assert "libiomp5" in preloaded
    assert preloaded.endswith(":/lib/libtcmalloc.so.4")
