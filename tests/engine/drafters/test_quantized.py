"""A rounded copy of the target drafts nearly what the target says."""

from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.generation import generate
from cluster.built_in_models import TARGET, model_path
from cluster.checkpoint_files import Quantize
from engine.drafters.loading import LoadedDrafter, load_quantized
from engine.errors import IncompatibleDrafter
from engine.model import PackedModel
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests.engine.families import SUPPORTED, VOCAB, build
from tests.engine.streams import questions
from tests.identity import joined

DEPTH = 4
load = partial(load_quantized, "copy", dtype=None, device="cpu", kv_tokens=2048)


def load_zoo(quantize: Quantize) -> LoadedDrafter:
    return load(model_path(TARGET), target_vocab_size=2048, quantize=quantize)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("quantize", "per_verdict"), [("int8", 4.5), ("int4", 3.0)])
def test_most_drafts_are_accepted(
    quantize: Quantize, per_verdict: float, dtype: torch.dtype
) -> None:
    verifier = NativeVerifier(
        PackedModel.load(model_path(TARGET), dtype=dtype, device="cpu", kv_tokens=2048)
    )
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=40, ignore_eos=True)
    prompts = questions(shared=False)
    drafter = load_zoo(quantize).drafter
    served = generate(verifier, prompts, params, drafter=drafter, depth=DEPTH)
    streams, commits = joined(served, len(prompts))
    # No draft stands before an output's first token.
    assert sum(len(one) - 1 for one in streams) > per_verdict * (commits - len(prompts))


def test_a_copy_is_measured_by_its_bits(tmp_path: Path) -> None:
    for quantize in ("int8", "int4"):
        load_zoo(quantize).measure(tmp_path, 0.01)
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_a_family_without_kernels_is_refused(tmp_path: Path) -> None:
    build(SUPPORTED["gpt2"]).save_pretrained(tmp_path)
    with pytest.raises(IncompatibleDrafter, match=r"kind: .* a gpt2; .* choose another kind"):
        load(tmp_path, target_vocab_size=VOCAB)
