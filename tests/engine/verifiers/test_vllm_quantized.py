"""Quantized targets on vLLM: with drafts their greedy output is that of vLLM alone."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.hosts.loading import target_dtype
from benchmarks.generation import generate
from cluster.built_in_models import TARGET, model_path
from cluster.config import TargetConfig
from cluster.quantized_targets import cpu_problem, processor_flags
from engine.cpu.prepack import fast_dtype
from engine.drafters.lookup import NgramDrafter
from engine.sampling.params import SamplingParams
from engine.verifiers.vllm.loading import VllmSpec, load_vllm
from tests.engine.streams import questions
from tests.engine.verifiers.backends import AMPLE, EAGER
from tests.identity import joined

GROUP = 32
TOKENS = 48
WEIGHTS = {
    "W4A16": {"num_bits": 4, "strategy": "group", "group_size": GROUP},
    "W8A8": {"num_bits": 8, "strategy": "channel"},
}
INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def compressed(folder: Path, form: str) -> Path:
    """The zoo's target in the format of compressed-tensors, rounded to nearest."""
    shutil.copytree(model_path(TARGET), folder)
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            weights[name] = weight
            continue
        rows, columns = weight.shape
        groups = weight.float().view(rows, -1, GROUP if form == "W4A16" else columns)
        most = 7 if form == "W4A16" else 127
        scale = groups.abs().amax(-1, keepdim=True) / most
        rounded = (groups / scale).round().view(rows, columns).int()
        stem = name.removesuffix("weight")
        weights[f"{stem}weight_scale"] = scale.squeeze(-1).bfloat16()
        if form == "W8A8":
            weights[name] = rounded.to(torch.int8)
        else:
            nibbles = (rounded + 8).view(rows, -1, 8) << torch.arange(0, 32, 4)
            weights[f"{stem}weight_packed"] = nibbles.sum(-1).int()
            weights[f"{stem}weight_shape"] = torch.tensor([rows, columns])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    own = {"type": "int", "symmetric": True, "dynamic": False, **WEIGHTS[form]}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized" if form == "W4A16" else "int-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": own,
                "input_activations": INPUTS if form == "W8A8" else None,
            }
        },
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("form", WEIGHTS)
def test_a_quantized_targets_greedy_output_is_vllms_own(form: str, tmp_path: Path) -> None:
    folder = compressed(tmp_path / form, form)
    if problem := cpu_problem(folder, processor_flags()):
        pytest.skip(problem)
    dtype = target_dtype(TargetConfig(model=str(folder), backend="vllm"), folder)
    assert dtype == (torch.bfloat16 if form == "W4A16" else fast_dtype("cpu"))
    # W8A8 in float32 as well where that is not the default: exact in any batch.
    name = "bfloat16" if form == "W4A16" else "float32"
    verifier = load_vllm(VllmSpec(folder, name, AMPLE, engine_args=EAGER))
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    prompts = questions(False)
    batch = len(prompts) if form == "W8A8" else 1
    drafter = NgramDrafter("ngram")
    served = generate(verifier, prompts, params, drafter=drafter, max_batch=batch)
    streams, commits = joined(served, len(prompts))
    assert commits < 0.9 * sum(map(len, streams)), "drafts are accepted"

    from vllm import LLM
    from vllm import SamplingParams as Params

    alone = LLM(
        str(folder), dtype=name, enforce_eager=True, skip_tokenizer_init=True,
        kv_cache_memory_bytes=64 << 20, max_model_len=2048, block_size=32,
    )  # fmt: skip
    expected = [
        list(alone.generate([{"prompt_token_ids": prompt}], Params(
            temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False,
        ))[0].outputs[0].token_ids)
        for prompt in prompts
    ]  # fmt: skip
    assert streams == expected
