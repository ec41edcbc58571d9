"""A copy of the target with weights of 4 or 8 bits (kind `quantized`), as in ML-SpecQD.

An ordinary model drafter with KV of its own. Nothing is trained or fetched: the target's floats are
rounded when the drafter is loaded.
"""

from pathlib import Path

import torch

from cluster.checkpoint_files import Quantize
from engine.cpu.quantized_forward import can_run
from engine.cpu.quantized_loading import quantized_linears
from engine.drafters.loading import LoadedDrafter, loaded_drafter
from engine.drafters.runner import PackedRunner
from engine.errors import IncompatibleDrafter
from engine.model import PackedModel, load_stock


def load_quantized(
    name: str,
    checkpoint: Path,
    *,
    dtype: torch.dtype | None,
    device: str,
    kv_tokens: int,
    target_vocab_size: int,
    quantize: Quantize = "int4",
) -> LoadedDrafter:
    """`checkpoint`: the target's. `dtype` and `device` are those of the kernels, whatever the
    target's. Raises IncompatibleDrafter."""
    model = load_stock(checkpoint, torch.float32)
    if not can_run(model):
        raise IncompatibleDrafter(
            name,
            "kind",
            f"there are no quantized kernels for {checkpoint.name}, a {model.config.model_type}; "
            "they run Llama, Mistral, Qwen 2 and Qwen 3: choose another kind",
        )
    size = float(model.num_parameters())
    linears = quantized_linears(model, checkpoint, quantize)
    runner = PackedRunner(PackedModel(model, kv_tokens=kv_tokens, quantized=linears))
    return loaded_drafter(name, runner, size, checkpoint, target_vocab_size)
