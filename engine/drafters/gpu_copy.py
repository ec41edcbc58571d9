"""Copies of the target for a GPU, rounded by torchao: not run on one yet."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from cluster.checkpoint_files import Quantize
from engine.checkpoint import load_stock

_GROUP = 32
"""Weights that share a scale, as in copies on a CPU."""


def rounded_copy(checkpoint: Path, quantize: Quantize, device: str) -> PreTrainedModel:
    """The checkpoint's model with the weights of its linear layers in 4 or 8 bits, moved to the
    device layer by layer. Raises ModuleNotFoundError without torchao."""
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    if quantize == "int8":
        config = Int8WeightOnlyConfig()
    else:  # products that torch has itself; the default format needs a further library
        config = Int4WeightOnlyConfig(_GROUP, int4_packing_format="tile_packed_to_4d")
    model = load_stock(checkpoint, torch.bfloat16)
    quantize_(model, config, device=device)
    return model.to(device).eval()
