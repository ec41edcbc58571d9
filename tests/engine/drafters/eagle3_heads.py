"""Small EAGLE-3 heads as checkpoints of speculators, and what that package computes with them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from tests.checkpoints import VOCAB

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP = 32, 4, 2, 8, 48
DRAFT_VOCAB = 60
LAYERS = (2, 0, 3)
EPSILON, THETA = 1e-5, 10_000.0


def config(**changes: Any) -> dict[str, Any]:
    layer = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 256,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
    }
    return {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFT_VOCAB,
        "target_hidden_size": HIDDEN,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
        "transformer_layer_config": layer,
        **changes,
    }


def target_ids() -> Tensor:
    """The reduced vocabulary: the target's ids of its tokens."""
    generator = torch.Generator().manual_seed(5)
    return torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values


def random_weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> Tensor:
        return 0.3 * torch.randn(rows, columns, generator=generator)

    def norm() -> Tensor:
        return 1 + 0.2 * torch.randn(HIDDEN, generator=generator)

    layer = "layers.0."
    return {
        "embed_tokens.weight": matrix(VOCAB, HIDDEN),
        "fc.weight": matrix(HIDDEN, len(LAYERS) * HIDDEN),
        f"{layer}input_layernorm.weight": norm(),
        f"{layer}hidden_norm.weight": norm(),
        f"{layer}post_attention_layernorm.weight": norm(),
        f"{layer}self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{layer}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
        f"{layer}mlp.gate_proj.weight": matrix(MLP, HIDDEN),
        f"{layer}mlp.up_proj.weight": matrix(MLP, HIDDEN),
        f"{layer}mlp.down_proj.weight": matrix(HIDDEN, MLP),
        "norm.weight": norm(),
        "lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN),
        "d2t": target_ids() - torch.arange(DRAFT_VOCAB),
    }


def attention_biases() -> dict[str, Tensor]:
    """What `attention_bias` adds to the weights."""
    generator = torch.Generator().manual_seed(1)
    sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM, "o": HIDDEN}
    return {
        f"layers.0.self_attn.{name}_proj.bias": torch.randn(size, generator=generator)
        for name, size in sizes.items()
    }


def write_head(
    path: Path, weights: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(settings or config()))
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(contiguous, path / "model.safetensors")
    return path


def speculators_model(weights: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Any:
    """The package speculators' own model of a head."""
    from speculators.models.eagle3.config import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    layer = {**settings["transformer_layer_config"]}
    del layer["model_type"]
    layer_config = LlamaConfig(**layer)
    layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=layer_config,
            draft_vocab_size=DRAFT_VOCAB,
            norm_before_residual=settings["norm_before_residual"],
            target_hidden_size=HIDDEN,
            eagle_aux_hidden_state_layer_ids=settings["eagle_aux_hidden_state_layer_ids"],
        )
    )
    missing, surplus = model.load_state_dict(dict(weights), strict=False)
    assert not surplus
    assert set(missing) == {"t2d", "verifier_lm_head.weight", "verifier_norm.weight"}
    return model


def speculators_logits(
    model: Any, tokens: Sequence[int], features: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """What it says after the committed tokens, which are one more than have features, and after
    each drafted one: scores over the reduced vocabulary."""
    last, drafted = len(features) - 1, len(tokens) - len(features) - 1
    scores: list[NDArray[np.float32]] = []
    hook = model.lm_head.register_forward_hook(
        lambda _module, _inputs, output: scores.append(output[0, last].numpy())
    )
    # Each of its steps reads the next of the given tokens in place of its own choice, at every
    # position; positions after the last committed one only bring those tokens.
    ids = torch.tensor([[*tokens[1:], 0]])
    padded = torch.zeros(1, ids.shape[1], features.shape[1])
    padded[0, : len(features)] = torch.from_numpy(features)
    with torch.inference_mode():
        model(padded, ids, torch.zeros_like(ids), ttt_steps=drafted + 1)
    hook.remove()
    return scores
