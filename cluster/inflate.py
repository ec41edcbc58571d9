"""Function-preserving inflation: a larger target that computes the same function as the small one.

The original weights are the corner of larger matrices. New hidden dimensions stay exactly zero; new
heads and new MLP channels have only zeros as input, so their output is zero whatever their other
weights are. All other new weights are random, so that they cost as much as a real model's. See
docs/zoo.md.
"""

import hashlib
import math
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import FileLock
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from cluster.cache import check_room
from cluster.checkpoints import architecture


def inflate_to_cache(source: Path, params: int, cache: Path) -> Path:
    """The inflated copy of the model in `source`; written only once, even with concurrent
    callers."""
    destination = cache / f"{source.name}-{params}-{_digest(source)}"
    if destination.exists():
        return destination
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{destination}.lock"):
        if not destination.exists():
            check_room(cache, 2 * params)
            partial = destination.with_suffix(f".partial-{os.getpid()}")
            try:
                inflate(source, params, partial)
                partial.rename(destination)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return destination


def inflate(source: Path, params: int, destination: Path) -> None:
    """Writes a model of about `params` parameters that computes the same function as `source`."""
    small = LlamaForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    config = inflated_config(source, params)
    torch.manual_seed(0)
    large = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        _fill(large, small)
    large.save_pretrained(destination)
    AutoTokenizer.from_pretrained(source).save_pretrained(destination)


def inflated_config(source: Path, params: int) -> LlamaConfig:
    config = LlamaConfig.from_pretrained(source)
    larger = asdict(architecture(source, params))
    config.rms_norm_eps /= larger["hidden_size"] // config.hidden_size
    config.update(larger)
    return config


def _fill(large: LlamaForCausalLM, small: LlamaForCausalLM) -> None:
    """Copies the original weights, and sets zeros where a random weight would change the result."""
    hidden = small.config.hidden_size
    real = small.state_dict()
    for name, weight in large.state_dict().items():
        corner = real.get(name)
        if weight.ndim == 1:
            if corner is not None:  # norm weights; they have no effect where x is zero
                weight[:hidden] = corner * math.sqrt(hidden / weight.shape[0])
            continue
        rows, columns = corner.shape if corner is not None else (0, 0)
        if "embed_tokens" in name or "lm_head" in name:
            weight[:, columns:] = 0  # new hidden dimensions start at zero,
        elif "o_proj" in name or "down_proj" in name:
            weight[rows:, :columns] = 0  # and original outputs add nothing to them
        elif "v_proj" in name or "up_proj" in name:
            weight[rows:, :hidden] = 0  # new heads and channels read only these zeros
        if corner is not None:
            weight[:rows, :columns] = corner


def _digest(source: Path) -> str:
    """Hash of weights, config and tokenizer, so that retrained models are inflated again."""
    digest = hashlib.sha256()
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        digest.update((source / file).read_bytes())
    return digest.hexdigest()[:12]
