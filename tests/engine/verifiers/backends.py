"""The zoo's target in fp32 on each verifier backend, loaded once for all test modules."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import torch

from cluster.built_in_models import TARGET, model_path
from engine.model import PackedModel
from engine.protocol import Verifier
from engine.verifiers.native import NativeVerifier
from engine.verifiers.vllm.loading import VllmSpec, load_vllm
from tests.engine.grammar.oracle import grammars

if TYPE_CHECKING:  # imports vLLM, which takes every process that collects tests seconds
    from engine.verifiers.vllm.verifier import VllmVerifier

Backend = Literal["native", "vllm"]
AMPLE, TIGHT = 8192, 320
"""Tokens of KV."""
EAGER = {"enforce_eager": True}
"""vLLM without compilation, which loads in a third of the time."""


@dataclass(frozen=True, slots=True)
class Host:
    verifier: Verifier
    used_blocks: Callable[[], int]


@cache
def host(backend: Backend, kv_tokens: int) -> Host:
    if backend == "vllm":
        verifier = vllm(kv_tokens)
        return Host(verifier, lambda: verifier.blocks().used)
    model = PackedModel.load(
        model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=kv_tokens
    )
    return Host(NativeVerifier(model, grammars()), lambda: model.kv.used_blocks)


@cache
def vllm(kv_tokens: int) -> "VllmVerifier":
    return load_vllm(VllmSpec(model_path(TARGET), "float32", kv_tokens, engine_args=EAGER))
