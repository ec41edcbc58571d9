"""An EAGLE-3 head for training: whole batches of texts, unrolled over its own hidden states.

It writes the `speculators` format that `engine/drafters/eagle3_head.py` serves. Index i has the
features of token i. At step k the head reads token i + 1 + k there and predicts token i + 2 + k;
its input is `fc` of the features at step 0, and its own output of the step before at later ones, as
after the committed tokens in service (Li et al., "EAGLE-3", 2025, training-time test).
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

_STORED_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "rope_parameters",
)


def usual_layers(layers: int) -> tuple[int, int, int]:
    """The target's layers that EAGLE-3 reads: what enters an early, a middle and a late one."""
    return 2, layers // 2, layers - 3


def vocabulary_maps(target_ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """A reduced vocabulary as `speculators` stores it. `target_ids`: its tokens, ascending."""
    reached = torch.zeros(vocab_size, dtype=torch.bool)
    reached[target_ids] = True
    difference = target_ids - torch.arange(len(target_ids))  # of the two ids
    return {"t2d": reached, "d2t": difference}


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self._head_dim = config.head_dim
        self._groups = config.num_attention_heads // config.num_key_value_heads
        read, width = 2 * config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(read, config.num_attention_heads * width, bias=False)
        self.k_proj = nn.Linear(read, config.num_key_value_heads * width, bias=False)
        self.v_proj = nn.Linear(read, config.num_key_value_heads * width, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * width, config.hidden_size, bias=False)

    def forward(
        self, rows: Tensor, cos: Tensor, sin: Tensor, earlier: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """`earlier`: keys and values of the steps before, to which this step's are added. An index
        sees the rows of step 0 up to its own, and of later steps its own alone."""
        query, keys, values = (
            project(rows).unflatten(-1, (-1, self._head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, keys = apply_rotary_pos_emb(query, keys, cos, sin)
        earlier.append(
            (keys.repeat_interleave(self._groups, 1), values.repeat_interleave(self._groups, 1))
        )
        (first_keys, first_values), *own = earlier
        count = rows.shape[1]
        hidden = torch.ones(count, count, dtype=torch.bool, device=rows.device).triu(1)
        scores = (query @ first_keys.mT).masked_fill(hidden, -torch.inf)
        own_scores = [(query * some).sum(-1, keepdim=True) for some, _ in own]
        shares = torch.cat([scores, *own_scores], -1).mul(self._head_dim**-0.5).softmax(-1)
        mixed = shares[..., :count] @ first_values
        for step, (_, some) in enumerate(own):
            mixed = mixed + shares[..., count + step, None] * some
        output: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return output


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        earlier: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        residual = self.hidden_norm(hidden)  # `norm_before_residual`
        read = torch.cat([self.input_layernorm(embeddings), residual], -1)
        hidden = residual + self.self_attn(read, cos, sin, earlier)
        output: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class TrainedHead(nn.Module):
    """Its modules are named as the checkpoint's weights. The output matrix is the target's rows of
    the reduced vocabulary and stays as it is; embeddings are the target's."""

    def __init__(self, target: LlamaForCausalLM, target_ids: Tensor) -> None:
        """`target_ids`: of the reduced vocabulary, ascending."""
        super().__init__()
        config = target.config
        self.aux_layers = usual_layers(config.num_hidden_layers)
        self.target_ids = target_ids
        self._config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(self.aux_layers) * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([_Layer(config)])
        # It begins with what `fc` reads, and its layer adds nothing yet.
        nn.init.zeros_(self.layers[0].self_attn.o_proj.weight)
        nn.init.zeros_(self.layers[0].mlp.down_proj.weight)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.norm.load_state_dict(target.model.norm.state_dict())
        self.lm_head = nn.Linear(hidden, len(target_ids), bias=False)
        self.lm_head.weight.data = target.lm_head.weight.detach()[target_ids].float()
        self.lm_head.requires_grad_(False)
        self._rotary = LlamaRotaryEmbedding(config)

    def forward(self, features: Tensor, embeddings: Tensor, steps: int) -> list[Tensor]:
        """Features and the target's embeddings by index → each step's logits, [texts, indices,
        reduced vocabulary]; where a step reads beyond the text, they mean nothing."""
        hidden = self.fc(features)
        earlier: list[tuple[Tensor, Tensor]] = []
        logits = []
        for step in range(steps):
            read = pad(embeddings[:, step + 1 :], (0, 0, 0, step + 1))[:, : hidden.shape[1]]
            positions = torch.arange(step, step + hidden.shape[1], device=hidden.device)
            cos, sin = self._rotary(hidden, positions[None])
            hidden = self.layers[0](read, hidden, cos, sin, earlier)
            logits.append(self.lm_head(self.norm(hidden)))
        return logits

    def load(self, path: Path) -> None:
        """Takes over what a saved head has learnt; its reduced vocabulary may be another."""
        stored = load_file(path / "model.safetensors")
        learnt = {name for name, weight in self.named_parameters() if weight.requires_grad}
        self.load_state_dict({name: stored[name] for name in learnt}, strict=False)

    def save(self, path: Path, depth: int, target: str, *, output_matrix: bool = True) -> None:
        """`depth`: how many tokens it is meant to draft; `target`: the name of its target. Without
        the output matrix only our own loader reads it, which takes the target's rows."""
        weights = {name: weight.bfloat16() for name, weight in self.state_dict().items()}
        if not output_matrix:
            del weights["lm_head.weight"]
        count = len(self.target_ids)
        weights |= vocabulary_maps(self.target_ids, self._config.vocab_size)
        path.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: weight.contiguous() for name, weight in weights.items()},
            path / "model.safetensors",
        )
        layer = {name: getattr(self._config, name) for name in _STORED_SIZES}
        proposal = {"proposal_type": "greedy", "speculative_tokens": depth}
        described = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {"name_or_path": target, "architectures": ["LlamaForCausalLM"]},
            },
            "draft_vocab_size": count,
            "target_hidden_size": self._config.hidden_size,
            "norm_before_residual": True,
            "eagle_aux_hidden_state_layer_ids": list(self.aux_layers),
            "embed_requires_grad": False,
            "torch_dtype": "bfloat16",
            "transformer_layer_config": {"model_type": "llama", "num_hidden_layers": 1, **layer},
        }
        (path / "config.json").write_text(json.dumps(described, indent=2) + "\n")
