"""LoRA adapters for tests in PEFT's format, and their targets with the adapters merged in."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

PROJECTIONS = ("q_proj", "v_proj", "o_proj", "down_proj")


def write_adapter(folder: Path, target: Path, seed: int, rank: int = 4, **config: Any) -> Path:
    """Random matrices, large enough to change most answers."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, layer in model.named_modules():
        if name.endswith(PROJECTIONS):
            outputs, inputs = layer.weight.shape
            scale = 0.6 * float(layer.weight.detach().std())
            a = torch.randn(rank, inputs, generator=generator) * scale
            b = torch.randn(outputs, rank, generator=generator) / rank
            weights |= {f"base_model.model.{name}.lora_{side}.weight": one
                        for side, one in (("A", a), ("B", b))}  # fmt: skip
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    own = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    own |= {"target_modules": list(PROJECTIONS), "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(own | config))
    return folder


def merged(target: Path, adapter: Path) -> PreTrainedModel:
    """The reference of a target that runs with the adapter."""
    model = AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, a in weights.items():
            if name.endswith("lora_A.weight"):
                b = weights[name.replace("lora_A", "lora_B")]
                layer = model.get_submodule(name.split(".", 2)[2].removesuffix(".lora_A.weight"))
                layer.weight += config["lora_alpha"] / config["r"] * (b @ a)
    return model
