"""A decoder's sizes, and those of a larger Llama with the same function (cluster/inflate.py): plain
arithmetic, so that no model need be loaded."""

import math
from dataclasses import dataclass, replace

_GROWTH = 4  # sqrt(4) is a power of two: scaling a norm by it is exact in any float format
_MLP_RATIO = 3.0
_MLP_MULTIPLE = 64
_MAX_LAYERS = 48
_MAX_GROWTHS = 3  # 64 times the hidden size; beyond that no machine holds the model


@dataclass(frozen=True, slots=True)
class Architecture:
    """The decoder's sizes, under their names in config.json."""

    vocab_size: int
    max_position_embeddings: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int

    def kv_values(self) -> int:
        """The number of values that one token takes in the KV cache."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    def layer_parameters(self) -> int:
        """The weights of one layer's matrices in a Llama; other families have about as many, or
        more."""
        return self._attention_parameters() + 3 * self.hidden_size * self.intermediate_size

    def _attention_parameters(self) -> int:
        heads = 2 * (self.num_attention_heads + self.num_key_value_heads)
        return heads * self.head_dim * self.hidden_size

    def adapter_parameters(self, rank: int) -> int:
        """The weights of a LoRA adapter for all matrices of a Llama's layers."""
        inner = self.num_attention_heads * self.head_dim
        kv = self.num_key_value_heads * self.head_dim
        ends = 2 * (inner + kv) + 4 * self.hidden_size  # of the attention's four matrices
        ends += 3 * (self.hidden_size + self.intermediate_size)
        return self.num_hidden_layers * rank * ends

    def parameters(self) -> int:
        """Those of a Llama with tied embeddings and without biases."""
        layers = self.num_hidden_layers * (self.layer_parameters() + 2 * self.hidden_size)
        return (self.vocab_size + 1) * self.hidden_size + layers

    def inflated(self, params: int) -> "Architecture":
        """The sizes with about this number of parameters whose proportions are nearest to usual
        ones (MLP three times the width)."""
        found = [
            larger
            for exponent in range(_MAX_GROWTHS + 1)
            for layers in range(self.num_hidden_layers, _MAX_LAYERS + 1)
            if (larger := self._grown(_GROWTH**exponent, layers, params)) is not None
        ]
        if not found:
            raise ValueError(
                f"params: the target cannot be inflated to {params:,} parameters; "
                f"it has {self.parameters():,}"
            )
        return min(
            found,
            key=lambda one: abs(math.log(one.intermediate_size / one.hidden_size / _MLP_RATIO)),
        )

    def _grown(self, growth: int, layers: int, params: int) -> "Architecture | None":
        """The sizes of this width and depth, if an MLP size exists with which it has about
        `params`."""
        without_mlp = replace(
            self,
            hidden_size=self.hidden_size * growth,
            intermediate_size=0,
            num_hidden_layers=layers,
            num_attention_heads=self.num_attention_heads * growth,
            num_key_value_heads=self.num_key_value_heads * growth,
        )
        left = params - without_mlp.parameters()
        channels = left / (3 * layers * without_mlp.hidden_size)
        intermediate = round(channels / _MLP_MULTIPLE) * _MLP_MULTIPLE
        if intermediate < self.intermediate_size:
            return None
        return replace(without_mlp, intermediate_size=intermediate)
