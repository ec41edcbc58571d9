"""A CPU forward of Llama and similar families with fewer operations than the stock modules.

transformers runs some forty small operations per layer, which together take as long as the matrix
products of a small batch. Here a layer is five packed linear layers, which also compute the
activation, its product and the residual sums, three calls of compiled kernels, and attention.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.attention.context import Scoring
from engine.attention.hook import Handler, LayerCall
from engine.cpu.norm_kernels import Bits, Floats, rms_norm, rotate
from engine.cpu.prepack import PackedLinear, PackedPart, join
from engine.hidden_states import HiddenStates

FloatForward = Callable[[Tensor, Tensor, Tensor, Handler, HiddenStates | None], Tensor]
"""tokens [rows], positions [rows], wanted [n] → logits of the wanted rows [n, vocabulary]. Fills
the hidden states."""

FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
"""Model types whose layers are alike but for biases, head norms and windows."""

BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


class Norm(NamedTuple):
    weight: Floats
    epsilon: float

    def __call__(self, rows: Tensor) -> Tensor:
        normed = torch.empty_like(rows)
        rms_norm(_bits(rows), self.weight, self.epsilon, _bits(normed))
        return normed


class FusedLayer(NamedTuple):
    number: int
    attention_norm: Norm
    projections: PackedLinear
    """Queries, keys and values in one."""
    heads: tuple[int, int, int]
    """How many of each."""
    head_norms: Norm
    """[query and key heads, head_dim], or of width 0 in families without."""
    scoring: Scoring
    output: PackedLinear
    mlp_norm: Norm
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear

    def __call__(self, hidden: Tensor, cos: Floats, sin: Floats, attend: Handler) -> Tensor:
        return self.after_norm(self.attention_norm(hidden), hidden, cos, sin, attend)

    def after_norm(
        self, read: Tensor, hidden: Tensor, cos: Floats, sin: Floats, attend: Handler
    ) -> Tensor:
        """`read`: what the projections multiply; `hidden`: what the layer adds to."""
        projected = self.projections(read)
        heads = projected.unflatten(1, (sum(self.heads), -1))
        rotate(_bits(heads), *self.head_norms, cos, sin)
        query, keys, values = heads.split(self.heads, 1)
        mixed = attend(LayerCall(self.number, query, keys, values, self.scoring))
        hidden = self.output.plus(mixed.flatten(1), hidden)
        normed = self.mlp_norm(hidden)
        gated = self.up.times(normed, self.gate.silu(normed))
        return self.down.plus(gated, hidden)


def fused_forward(model: PreTrainedModel) -> FloatForward | None:
    """The forward of a prepacked model; None if the model's own forward must run: on another
    device, in another family, or with replaced layers."""
    if not _is_fusible(model):
        return None
    decoder, lm_head = model.model, model.lm_head
    # Mistral has one window for all layers, in its config; Llama has none.
    window = getattr(model.config, "sliding_window", None)
    layers = [fused_layer(layer, number, window) for number, layer in enumerate(decoder.layers)]
    final_norm = fused_norm(decoder.norm)

    def forward(
        tokens: Tensor,
        positions: Tensor,
        wanted: Tensor,
        attend: Handler,
        states: HiddenStates | None,
    ) -> Tensor:
        hidden = decoder.embed_tokens(tokens)
        rotation = decoder.rotary_emb(hidden[None], positions[None])
        cos, sin = (part[0].float().numpy() for part in rotation)
        for layer in layers:
            if states is not None:
                states.take(layer.number, hidden)
            hidden = layer(hidden, cos, sin, attend)
        return lm_head(final_norm(hidden[wanted]))

    return forward


def _is_fusible(model: PreTrainedModel) -> bool:
    if model.config.model_type not in FAMILIES or model.config.hidden_act != "silu":
        return False
    linears = [model.lm_head]
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        linears += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return all(isinstance(linear, PackedLinear | PackedPart) for linear in linears)


def fused_layer(layer: nn.Module, number: int, window: int | None = None) -> FusedLayer:
    """The compiled calls for a layer whose linear layers are packed; `window` where its attention
    names none."""
    attention, mlp = layer.self_attn, layer.mlp
    if not isinstance(attention.q_proj, PackedPart):
        parts = join([attention.q_proj, attention.k_proj, attention.v_proj])
        attention.q_proj, attention.k_proj, attention.v_proj = parts
    query_heads = attention.q_proj.out_features // attention.head_dim
    kv_heads = attention.k_proj.out_features // attention.head_dim
    return FusedLayer(
        number,
        fused_norm(layer.input_layernorm),
        attention.q_proj.whole,
        (query_heads, kv_heads, kv_heads),
        head_norms(attention, query_heads, kv_heads),
        Scoring(attention.scaling, getattr(attention, "sliding_window", window)),
        attention.o_proj,
        fused_norm(layer.post_attention_layernorm),
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
    )


def head_norms(attention: nn.Module, query_heads: int, kv_heads: int) -> Norm:
    if not hasattr(attention, "q_norm"):
        return Norm(np.empty((query_heads + kv_heads, 0), np.float32), 0.0)
    query, key = fused_norm(attention.q_norm), fused_norm(attention.k_norm)
    weights: list[NDArray[np.float32]] = [query.weight] * query_heads + [key.weight] * kv_heads
    return Norm(np.stack(weights), query.epsilon)


def fused_norm(norm: nn.Module) -> Norm:
    return Norm(norm.weight.detach().float().numpy(), norm.variance_epsilon)


def _bits(rows: Tensor) -> Bits:
    return rows.view(BITS[rows.dtype]).numpy()
