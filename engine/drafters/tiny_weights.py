"""Which models the tiny runner supports, and their weights in the layout of its compiled loops."""

from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from engine.drafters.tiny_kernels import TILE, Floats, TinyWeights

MAX_PARAMETERS = 8_000_000
"""If a step reads more, the weights leave the second-level cache, and torch's own kernels are
faster."""
UNROLLED = 4
"""Inputs per iteration of the kernels' inner loops: sizes must be multiples."""


def is_tiny(model: PreTrainedModel) -> bool:
    """Whether the compiled loops compute exactly what this model computes."""
    if not isinstance(model, LlamaForCausalLM):
        return False
    config = model.config
    return (
        model.device.type == "cpu"
        and model.dtype == torch.float32
        and _parameters_of_a_step(model) <= MAX_PARAMETERS
        and config.hidden_act == "silu"
        and not config.attention_bias
        and not config.mlp_bias
        # Other types depend on the longest request in the batch.
        and config.rope_parameters["rope_type"] in ("default", "linear", "llama3", "yarn")
        and config.hidden_size % UNROLLED == 0
        and config.head_dim % UNROLLED == 0
    )


def _parameters_of_a_step(model: LlamaForCausalLM) -> int:
    """All but the embeddings, of which a step reads a row, unless they are the output matrix."""
    embeddings, output = model.model.embed_tokens.weight, model.lm_head.weight
    looked_up = 0 if output is embeddings else embeddings.numel()
    return int(model.num_parameters()) - looked_up


class PackedWeights(NamedTuple):
    """TinyWeights in two arrays, which numba unboxes faster (tiny_steps.py)."""

    numbers: Floats
    """All arrays one after the other, then the norms' epsilon."""
    layout: NDArray[np.int64]
    """[arrays + 1, 4]: each array's start and its shape without TILE; last, the head counts."""


def pack(model: LlamaForCausalLM) -> PackedWeights:
    weights = tiny_weights(model)
    arrays = [part for part in weights if isinstance(part, np.ndarray)]
    layout = np.zeros((len(arrays) + 1, 4), np.int64)
    layout[1:-1, 0] = np.cumsum([array.size for array in arrays[:-1]])
    for row, array in zip(layout, arrays, strict=False):
        row[1 : 1 + min(array.ndim, 3)] = array.shape[:3]
    layout[-1, :3] = weights.heads, weights.kv_heads, weights.head_dim
    parts = [array.ravel() for array in arrays]
    return PackedWeights(np.concatenate([*parts, [np.float32(weights.norm_eps)]]), layout)


@njit(cache=True, nogil=True)
def unpacked(numbers: Floats, layout: NDArray[np.int64]) -> TinyWeights:
    """The fields of PackedWeights as TinyWeights."""
    return TinyWeights(
        _matrix(numbers, layout[0]),
        _matrix(numbers, layout[1]),
        _layers(numbers, layout[2]),
        _layers(numbers, layout[3]),
        _matrix(numbers, layout[4]),
        _layers(numbers, layout[5]),
        _layers(numbers, layout[6]),
        numbers[layout[7, 0] : layout[8, 0]],
        _tiled(numbers, layout[8]),
        _matrix(numbers, layout[9]),
        _matrix(numbers, layout[10]),
        layout[11, 0],
        layout[11, 1],
        layout[11, 2],
        numbers[-1],
    )


@njit(cache=True, nogil=True)
def _matrix(numbers: Floats, at: NDArray[np.int64]) -> Floats:
    start, rows, columns, _ = at
    return numbers[start : start + rows * columns].reshape((rows, columns))


@njit(cache=True, nogil=True)
def _tiled(numbers: Floats, at: NDArray[np.int64]) -> Floats:
    start, tiles, inputs, _ = at
    return numbers[start : start + tiles * inputs * TILE].reshape((tiles, inputs, TILE))


@njit(cache=True, nogil=True)
def _layers(numbers: Floats, at: NDArray[np.int64]) -> Floats:
    start, layers, tiles, inputs = at
    stop = start + layers * tiles * inputs * TILE
    return numbers[start:stop].reshape((layers, tiles, inputs, TILE))


@torch.inference_mode()
def tiny_weights(model: LlamaForCausalLM) -> TinyWeights:
    config, layers = model.config, model.model.layers
    intermediate = _padded(config.intermediate_size)
    positions = torch.arange(config.max_position_embeddings)[None]
    cos, sin = model.model.rotary_emb(torch.zeros(1), positions)
    half = config.head_dim // 2
    return TinyWeights(
        embedding=_array(model.model.embed_tokens.weight),
        attention_norm=np.stack([_array(layer.input_layernorm.weight) for layer in layers]),
        qkv=np.stack([_qkv(layer.self_attn) for layer in layers]),
        attention_output=np.stack([_tiles(_array(one.self_attn.o_proj.weight)) for one in layers]),
        mlp_norm=np.stack([_array(layer.post_attention_layernorm.weight) for layer in layers]),
        gate_up=np.stack([_gate_up(layer.mlp, intermediate) for layer in layers]),
        down=np.stack([_down(layer.mlp, intermediate) for layer in layers]),
        final_norm=_array(model.model.norm.weight),
        lm_head=_tiles(_array(model.lm_head.weight)),
        # Both halves of a head rotate by the same angles.
        rope_cos=_array(cos[0, :, :half]),
        rope_sin=_array(sin[0, :, :half]),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        norm_eps=config.rms_norm_eps,
    )


def _qkv(attention: torch.nn.Module) -> Floats:
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    return _tiles(np.concatenate([_array(part.weight) for part in parts]))


def _gate_up(mlp: torch.nn.Module, width: int) -> Floats:
    halves = (_array(mlp.gate_proj.weight), _array(mlp.up_proj.weight))
    return _tiles(np.concatenate([_widen(half, width, axis=0) for half in halves]))


def _down(mlp: torch.nn.Module, width: int) -> Floats:
    return _tiles(_widen(_array(mlp.down_proj.weight), width, axis=1))


def _tiles(weight: Floats) -> Floats:
    """[outputs, inputs] → [tiles, inputs, TILE], the last tile padded with zeros."""
    filled = _widen(weight, _padded(len(weight)), axis=0)
    return np.ascontiguousarray(filled.reshape(-1, TILE, weight.shape[1]).swapaxes(1, 2))


def _widen(weight: Floats, size: int, axis: int) -> Floats:
    padding = [(0, 0), (0, 0)]
    padding[axis] = (0, size - weight.shape[axis])
    return np.pad(weight, padding)


def _padded(outputs: int) -> int:
    return -(-outputs // TILE) * TILE


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """A copy, so that the model can be freed."""
    return np.array(tensor.numpy(), np.float32)
