"""Chooses the shape of an inflated Llama, by plain arithmetic on the numbers in config.json, so
that no model need be loaded."""

import math
from dataclasses import dataclass
from typing import Protocol

_GROWTH = 4  # sqrt(4) is a power of two: scaling a norm by it is exact in any float format
_MLP_RATIO = 3.0
_MLP_MULTIPLE = 64
_MAX_LAYERS = 48
_MAX_GROWTHS = 3  # 64 times the hidden size; beyond that no machine holds the model


class LlamaSizes(Protocol):
    """The sizes that a transformers config has, and also `cluster.checkpoints.Architecture`."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    intermediate: int
    params: int


def choose_shape(small: LlamaSizes, params: int) -> Shape:
    """The shape with about this number of parameters whose proportions are nearest to usual ones
    (MLP three times the width)."""
    shapes = [
        shape
        for exponent in range(_MAX_GROWTHS + 1)
        for layers in range(small.num_hidden_layers, _MAX_LAYERS + 1)
        if (shape := _shape(small, _GROWTH**exponent, layers, params)) is not None
    ]
    if not shapes:
        raise ValueError(
            f"params: the target cannot be inflated to {params:,} parameters; "
            f"it has {parameter_count(small):,}"
        )
    return min(shapes, key=lambda s: abs(math.log(s.intermediate / s.hidden / _MLP_RATIO)))


def parameter_count(config: LlamaSizes) -> int:
    """The number of parameters of a Llama with tied embeddings and without biases."""
    hidden = config.hidden_size
    per_layer = _attention_params(config, 1) + 3 * hidden * config.intermediate_size + 2 * hidden
    return int(config.vocab_size * hidden + config.num_hidden_layers * per_layer + hidden)


def _attention_params(small: LlamaSizes, growth: int) -> int:
    heads = 2 * small.num_attention_heads + 2 * small.num_key_value_heads
    return int(heads * growth * small.head_dim * small.hidden_size * growth)


def _shape(small: LlamaSizes, growth: int, layers: int, params: int) -> Shape | None:
    """The shape of this width and depth, if an MLP size exists with which it has about `params`."""
    hidden = small.hidden_size * growth
    embedding = small.vocab_size * hidden + hidden
    fixed = _attention_params(small, growth) + 2 * hidden
    channels = ((params - embedding) / layers - fixed) / (3 * hidden)
    intermediate = round(channels / _MLP_MULTIPLE) * _MLP_MULTIPLE
    if intermediate < small.intermediate_size:
        return None
    total = embedding + layers * (fixed + 3 * hidden * intermediate)
    return Shape(hidden, layers, intermediate, total)
