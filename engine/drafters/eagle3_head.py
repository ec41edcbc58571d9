"""An EAGLE-3 head as the `speculators` format stores it: one decoder layer that reads a token's
embedding beside the target's features of the position before it, and an output matrix over a
reduced vocabulary (Li et al., "EAGLE-3", 2025; the same computation as vLLM's `llama_eagle3`).

Row j has the features of position j and token j + 1; it predicts token j + 2. After the committed
tokens the head's own output takes the place of the features.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from cluster.checkpoints import Eagle3Shape, eagle3_shape
from engine.checkpoint import load_config
from engine.cpu.prepack import prepack
from engine.cpu.quantized_linear import Int8Linear, to_int8
from engine.drafters.head_weights import (
    EMBEDDINGS,
    OUTPUT,
    read_weights,
    take_target_ids,
    weight_of,
)
from engine.errors import reading
from engine.sampling.vocabulary import ReducedVocabulary

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Query [rows, heads, head_dim], keys and values [rows, kv_heads, head_dim] of the new rows → each
row's attention output [rows, heads, head_dim]."""


class _Attention(nn.Module):
    """Reads embedding and hidden state side by side."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.scaling = config.head_dim**-0.5
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        bias = bool(config.attention_bias)
        read = 2 * config.hidden_size
        self.q_proj = nn.Linear(read, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(read, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(read, kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.head_dim, config.hidden_size, bias=bias)

    def forward(self, rows: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        query, keys, values = (
            project(rows).unflatten(-1, (-1, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, keys = apply_rotary_pos_emb(query, keys, cos, sin, unsqueeze_dim=1)
        mixed: Tensor = self.o_proj(attend(query, keys, values).flatten(1))
        return mixed


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig, norm_before_residual: bool) -> None:
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.self_attn = _Attention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, embeddings: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> Tensor:
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        read = torch.cat([self.input_layernorm(embeddings), normed], -1)
        hidden = residual + self.self_attn(read, cos, sin, attend)
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Eagle3Head(nn.Module):
    """Its modules are named as the checkpoint's weights."""

    vocabulary: ReducedVocabulary
    """The target's tokens that it scores."""

    def __init__(self, shape: Eagle3Shape, config: LlamaConfig) -> None:
        super().__init__()
        self.shape = shape
        self.config = config
        self.aux_layers = shape.aux_layers
        self.vocab_size: int = config.vocab_size
        self.max_context: int = config.max_position_embeddings
        self.target_hidden_size = shape.target_hidden_size
        width = len(shape.aux_layers) * shape.target_hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([_Layer(config, shape.norm_before_residual)])
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, shape.draft_vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    @classmethod
    def load(
        cls,
        path: Path,
        device: str,
        dtype: torch.dtype,
        target: Path | None = None,
        *,
        int8: bool = False,
        trainable: bool = False,
    ) -> Self:
        """`target`: the target's checkpoint, which has the embeddings if the head's has none, and
        then the output matrix, too. `int8`: of linear layers, on a CPU. `trainable`: they stay
        stock ones. Raises ValueError naming a tensor that does not fit."""
        shape = eagle3_shape(path, None if target is None else _layers(target))
        layer: dict[str, Any] = json.loads((path / "config.json").read_text())
        with reading(path / "config.json"):
            config = LlamaConfig(**layer["transformer_layer_config"])
        head = cls(shape, config)
        weights = _weights(path)
        target_ids = take_target_ids(weights, shape.draft_vocab_size, head.vocab_size)
        if EMBEDDINGS not in weights and target is not None:
            weights[EMBEDDINGS] = weight_of(target, EMBEDDINGS)
        if OUTPUT not in weights and target is not None:
            weights[OUTPUT] = weight_of(target, OUTPUT, EMBEDDINGS)[target_ids]
        try:
            head.load_state_dict(weights)
        except RuntimeError as error:  # names what is missing, what is not known, and other shapes
            raise ValueError(str(error)) from error
        head.to(device=device, dtype=dtype)
        head.vocabulary = ReducedVocabulary(target_ids.to(device), head.vocab_size)
        head.rotary = LlamaRotaryEmbedding(head.config).to(device)  # in fp32
        head.eval().requires_grad_(False)
        if not trainable:
            (to_int8 if int8 else prepack)(head)
        return head

    def learned(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The matrices that change when a trainable head learns from traffic."""
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and name not in (EMBEDDINGS, OUTPUT):
                yield name, weight

    def renewed(self, weights: Mapping[str, Tensor]) -> Self:
        """A head with these weights in place of its own, of the names that `learned` yields. It
        shares the others. Raises ValueError naming one that does not fit."""
        device = self.vocabulary.target_ids.device
        with torch.device("meta"):
            head = type(self)(self.shape, self.config)
        for name in ("embed_tokens", "lm_head", "rotary", "vocabulary"):
            setattr(head, name, getattr(self, name))
        expected = {name: weight.shape for name, weight in head.learned()}
        wrong = [
            name
            for name in expected.keys() | weights.keys()
            if name not in weights or weights[name].shape != expected.get(name)
        ]
        if wrong:
            raise ValueError(f"{', '.join(sorted(wrong))}: of another head, or missing")
        kept = {name: weight for name, weight in self.state_dict().items() if weight.ndim == 1}
        head.load_state_dict(kept | dict(weights), strict=False, assign=True)
        head.to(device=device, dtype=self.dtype).eval().requires_grad_(False)
        (to_int8 if isinstance(self.lm_head, Int8Linear) else prepack)(head)
        return head

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features, [rows, layers · hidden size], as the layer reads them."""
        fused: Tensor = self.fc(features.to(self.dtype))
        return fused

    def forward(self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The hidden states after these rows, which rows of drafted tokens below read, and of
        which `logits` are the scores of the next token."""
        embeddings = self.embed_tokens(tokens)
        cos, sin = self.rotary(embeddings[None], positions[None])
        output: Tensor = self.layers[0](embeddings, hidden, cos[0], sin[0], attend)
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """In fp32, over the reduced vocabulary."""
        scores: Tensor = self.lm_head(self.norm(hidden))
        return scores.float()


def _layers(target: Path) -> int:
    config = load_config(target).get_text_config(decoder=True)
    layers: int = config.num_hidden_layers
    return layers


def _weights(path: Path) -> dict[str, Tensor]:
    """By the names that modules have here; some checkpoints name the layer `midlayer`."""
    return {
        name.removeprefix("model.").replace("midlayer.", "layers.0."): weight
        for name, weight in read_weights(path).items()
    }
