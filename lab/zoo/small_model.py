"""A small Llama over a reduced vocabulary, for training, as a drafter of a larger target.

Its embeddings and its output matrix are projections of the target's own, which stay as they are: a
token that is rare in the training text is known by what the target knows of it, and neither matrix
needs storing. `engine/drafters/reduced_checkpoint.py` serves what it writes.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from lab.zoo.head_model import vocabulary_maps


@dataclass(frozen=True)
class SmallShape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int


class SmallDrafter(nn.Module):
    def __init__(self, target: LlamaForCausalLM, target_ids: Tensor, shape: SmallShape) -> None:
        """`target_ids`: of the reduced vocabulary, ascending."""
        super().__init__()
        self.target_ids = target_ids
        self._target_hidden = target.config.hidden_size
        self._vocab_size = target.config.vocab_size
        # In a tuple, so that they are no parameters of its own.
        rows = target.lm_head.weight.detach()[target_ids].float()
        self._of_target = target.model.embed_tokens, rows
        config = LlamaConfig(
            vocab_size=1,  # it is given embeddings
            hidden_size=shape.hidden,
            intermediate_size=3 * shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.hidden // shape.heads,
            max_position_embeddings=target.config.max_position_embeddings,
            rms_norm_eps=target.config.rms_norm_eps,
            rope_parameters=target.config.rope_parameters,
            attn_implementation="eager",  # the backward pass of torch's fused kernel takes longer
        )
        self.model = LlamaModel(config)
        del self.model.embed_tokens
        for layer in self.model.layers:  # they add nothing at first
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
        self.embed_projection = nn.Linear(self._target_hidden, shape.hidden, bias=False)
        self.output_projection = nn.Linear(shape.hidden, self._target_hidden, bias=False)
        nn.init.zeros_(self.output_projection.weight)

    @property
    def target_rows(self) -> Tensor:
        """The target's output matrix, its rows of the reduced vocabulary."""
        return self._of_target[1]

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits behind each token, [rows, tokens, reduced vocabulary]."""
        embeddings = self.embed_projection(self._of_target[0](tokens).float())
        hidden = self.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state
        # One matrix of the drafter's own width: cheaper than two products for every token.
        return linear(hidden, self.target_rows @ self.output_projection.weight)

    def save(self, path: Path) -> None:
        weights = {name: weight.bfloat16() for name, weight in self.state_dict().items()}
        count = len(self.target_ids)
        weights |= vocabulary_maps(self.target_ids, self._vocab_size)
        path.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: weight.contiguous() for name, weight in weights.items()},
            path / "model.safetensors",
            metadata={"format": "pt"},
        )
        config = self.model.config
        described = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": self._vocab_size,
            "draft_vocab_size": count,
            "target_hidden_size": self._target_hidden,
            "tie_word_embeddings": False,
            **{name: getattr(config, name) for name in _STORED_SIZES},
        }
        (path / "config.json").write_text(json.dumps(described, indent=2) + "\n")


_STORED_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "rope_parameters",
)
