"""Copies by torchao, whose 8 bits also run on a CPU.

Only the environment for GPUs has torchao (`pip install torchao` in others): where it is installed,
transformers imports it in every process.
"""

import sys

import pytest
import torch

from benchmarks.generation import generate
from cluster.built_in_models import TARGET, model_path
from engine.drafters.gpu_copy import rounded_copy
from engine.drafters.loading import load_quantized
from engine.drafters.model import ModelDrafter, make_runner
from engine.errors import IncompatibleDrafter
from engine.model import PackedModel
from engine.protocol import Commit
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests.engine.streams import questions


def test_most_drafts_of_a_copy_by_torchao_are_accepted() -> None:
    pytest.importorskip("torchao")
    path = model_path(TARGET)
    verifier = NativeVerifier(
        PackedModel.load(path, dtype=torch.float32, device="cpu", kv_tokens=2048)
    )
    runner = make_runner(rounded_copy(path, "int8", "cpu"), kv_tokens=2048)
    drafter = ModelDrafter("copy", runner, target_vocab_size=2048)
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=40, ignore_eos=True)
    rounds = [
        len(commit.token_ids)
        for commit in generate(verifier, questions(shared=False), params, drafter=drafter, depth=4)
        if isinstance(commit, Commit) and commit.first_index
    ]
    assert sum(rounds) / len(rounds) > 4


def test_a_copy_on_a_gpu_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(IncompatibleDrafter, match=r"gpus: .* needs .*torchao"):
        load_quantized(
            "copy",
            model_path(TARGET),
            dtype=None,
            device="cuda:0",
            kv_tokens=2048,
            target_vocab_size=2048,
        )
