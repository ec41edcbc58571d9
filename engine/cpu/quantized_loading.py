"""Finds or makes the quantized weights of a model that a CPU serves."""

import logging
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from cluster.checkpoint_files import QUANTIZED, Quantize
from engine.cpu.quantized_forward import HEAD, can_run, linear_names
from engine.cpu.quantized_weights import (
    GGUF_TYPES,
    Bits,
    QuantizedLinear,
    dequantized,
    from_gguf,
    quantized,
)

_BITS: dict[Quantize, Bits] = {"int8": 8, "int4": 4}
_LOG = logging.getLogger("spindle")


def will_quantize(checkpoint: Path, quantize: Quantize) -> bool:
    """Unless the model's family has no kernels."""
    return quantize in _BITS or (quantize == "auto" and (checkpoint / QUANTIZED).is_file())


def quantized_linears(
    model: PreTrainedModel, checkpoint: Path, quantize: Quantize
) -> dict[str, QuantizedLinear] | None:
    """By the names of the model's linear layers; None if the model is served in its own dtype.
    `auto`: as the GGUF file has them from which the checkpoint was converted."""
    if not will_quantize(checkpoint, quantize):
        return None
    if not can_run(model):
        _LOG.warning("%s: no quantized kernels for this family; served as floats", checkpoint.name)
        return None
    names = linear_names(model.config.num_hidden_layers)
    if quantize == "auto":
        return _of_file(checkpoint / QUANTIZED, names)
    return {name: _rounded(model, name, _BITS[quantize]) for name in names}


def _rounded(model: PreTrainedModel, name: str, bits: Bits) -> QuantizedLinear:
    """The model's layer has the rounded weights afterwards, for comparisons with it."""
    layer = model.get_submodule(name)
    # The output layer decides between neighbouring tokens: 4 bits cost it most.
    linear = quantized(layer.weight.detach().float().numpy(), 8 if name == HEAD else bits)
    layer.weight = nn.Parameter(torch.from_numpy(dequantized(linear)), requires_grad=False)
    return linear


def _of_file(file: Path, names: list[str]) -> dict[str, QuantizedLinear] | None:
    with safe_open(file, "numpy") as blocks:
        kinds = blocks.metadata()
        stored = {name: name if name in kinds else "model.embed_tokens" for name in names}
        others = sorted({kinds[name] for name in stored.values()} - {*GGUF_TYPES})
        if others:
            _LOG.warning(
                "%s: no kernels for %s; served as floats", file.parent.name, ", ".join(others)
            )
            return None
        return {name: from_gguf(kinds[key], blocks.get_tensor(key)) for name, key in stored.items()}
