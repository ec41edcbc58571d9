"""A CPU forward of Llama and similar families over quantized weights, in compiled loops.

The weights keep their values, inputs of linear layers are rounded to 8 bits, and keys and values to
float16, once, when they are written. All other numbers are float32. A row's bits depend on its own
request alone (quantized_steps.py), so a batch, a draft or a policy changes no token.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.attention.packed import NO_WINDOW, PoolAttention, stored
from engine.cpu.decoder_loop import FAMILIES, head_norms
from engine.cpu.dot_products import OUTPUTS
from engine.cpu.quantized_kernel import SCALE_GROUP, product_address
from engine.cpu.quantized_steps import (
    LAYER_STEPS,
    OUTPUT_STEPS,
    Rows,
    Weights,
    run_steps,
)
from engine.cpu.quantized_weights import QuantizedLinear
from engine.cpu.thread_team import any_failed, new_counters
from engine.hidden_states import HiddenStates

LINEARS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
"""A layer's linear layers, in the order of Weights.linears."""
HEAD = "lm_head"


def linear_names(layers: int) -> list[str]:
    """The modules whose weights must be quantized."""
    return [f"model.layers.{layer}.{name}" for layer in range(layers) for name in LINEARS] + [HEAD]


def can_run(model: PreTrainedModel) -> bool:
    """Whether the model's layers are of the form that is computed here."""
    config = model.config
    if config.model_type not in FAMILIES or config.hidden_act != "silu":
        return False
    attention = model.model.layers[0].self_attn
    biased = [
        model.get_submodule(name).bias is not None
        for name in linear_names(config.num_hidden_layers)
        if not name.endswith(("q_proj", "k_proj", "v_proj"))
    ]
    key_outputs = config.num_key_value_heads * attention.head_dim
    widths = {model.get_submodule(name).in_features % SCALE_GROUP for name in linear_names(1)}
    return not (any(biased) or any(widths) or key_outputs % OUTPUTS)


class Shape(NamedTuple):
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    gated: int
    vocabulary: int


class QuantizedForward:
    """Called like engine.cpu.decoder_loop's forward."""

    def __init__(self, model: PreTrainedModel, linears: Mapping[str, QuantizedLinear]) -> None:
        """`linears`: by the names of `linear_names`. The model keeps its embeddings, norms and
        rotary positions; its linear layers are not read."""
        config, decoder = model.config, model.model
        attention = decoder.layers[0].self_attn
        head_dim = attention.head_dim
        self._shape = Shape(
            layers=len(decoder.layers),
            hidden=config.hidden_size,
            query_heads=linears["model.layers.0.self_attn.q_proj"].outputs // head_dim,
            kv_heads=linears["model.layers.0.self_attn.k_proj"].outputs // head_dim,
            head_dim=head_dim,
            gated=config.intermediate_size,
            vocabulary=config.vocab_size,
        )
        self._linears = linears  # whose memory the addresses name
        self._embed, self._rotary = decoder.embed_tokens, decoder.rotary_emb
        default = getattr(config, "sliding_window", None)
        windows = [getattr(layer.self_attn, "sliding_window", default) for layer in decoder.layers]
        norms = [
            head_norms(layer.self_attn, self._shape.query_heads, self._shape.kv_heads)
            for layer in decoder.layers
        ]
        layers = range(self._shape.layers)
        self._weights = Weights(
            np.array(
                [fields for layer in layers for fields in _layer_fields(linears, layer)]
                + [_fields(linears[HEAD], 0)],
                np.int64,
            ),
            np.stack([_floats(norm.weight) for norm in _norms(decoder)]),
            decoder.norm.variance_epsilon,
            np.stack([norm.weight for norm in norms]),
            norms[0].epsilon,
            _biases(model),
            np.array([NO_WINDOW if window is None else window for window in windows], np.int64),
            decoder.layers[0].self_attn.scaling,
        )

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        wanted: Tensor,
        attend: PoolAttention,
        states: HiddenStates | None,
    ) -> Tensor:
        shape = self._shape
        threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
        numba.set_num_threads(threads)
        embedded = self._embed(tokens).float()
        cos, sin = (
            part[0].float().numpy() for part in self._rotary(embedded[None], positions[None])
        )
        rows = _rows(shape, embedded.numpy(), cos, sin, attend.slots)
        arrays, pool = attend.walk_arrays, stored(attend.kv.pool)
        counters = new_counters(LAYER_STEPS * shape.layers + OUTPUT_STEPS)
        assert arrays is not None  # quantized weights are for packed attention

        def run(first: int, end: int, rows: Rows) -> None:
            run_steps(threads, first, end, self._weights, rows, arrays, pool, counters)
            if any_failed(counters):
                raise MemoryError("a step of the forward found no memory")

        taken = [] if states is None else sorted(states.layers)
        first = 0
        for end in [*taken, shape.layers]:
            run(LAYER_STEPS * first, LAYER_STEPS * end, rows)
            if states is not None and end < shape.layers:
                states.take(end, torch.from_numpy(rows.hidden + rows.added))
            first = end
        padded = -(-shape.vocabulary // OUTPUTS) * OUTPUTS
        logits = np.empty((len(wanted), padded), np.float32)
        outputs = LAYER_STEPS * shape.layers
        run(outputs, outputs + OUTPUT_STEPS, _chosen(rows, wanted.numpy(), logits))
        return torch.from_numpy(logits)[:, : shape.vocabulary]


def _rows(
    shape: Shape,
    hidden: NDArray[np.float32],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    slots: NDArray[np.int64],
) -> Rows:
    count = len(hidden)
    attention = shape.query_heads * shape.head_dim
    widest = max(shape.hidden, attention, shape.gated)
    groups = count * (widest // SCALE_GROUP)

    def floats(*size: int) -> NDArray[np.float32]:
        return np.empty(size, np.float32)

    return Rows(
        hidden,
        np.zeros((count, shape.hidden), np.float32),
        floats(count, shape.hidden),
        np.empty(count * widest, np.int8),
        floats(groups),
        floats(groups),
        floats(2 * groups),
        floats(count, (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim),
        floats(count, shape.query_heads, shape.head_dim),
        floats(count, shape.query_heads, shape.head_dim),
        floats(count, 2 * shape.gated),
        floats(count, shape.gated),
        np.ascontiguousarray(cos),
        np.ascontiguousarray(sin),
        slots,
    )


def _chosen(rows: Rows, wanted: NDArray[np.int64], logits: NDArray[np.float32]) -> Rows:
    """The rows whose logits are wanted, as the inputs of the output layer."""
    return rows._replace(
        hidden=rows.hidden[wanted],
        added=rows.added[wanted],
        normed=rows.normed[: len(wanted)],
        projected=logits,
    )


def _norms(decoder: nn.Module) -> Iterator[nn.Module]:
    for layer in decoder.layers:
        yield layer.input_layernorm
        yield layer.post_attention_layernorm
    yield decoder.norm


def _layer_fields(linears: Mapping[str, QuantizedLinear], layer: int) -> list[list[int]]:
    own = [linears[f"model.layers.{layer}.{name}"] for name in LINEARS]
    query, key, _, _, gate, _, _ = (linear.outputs for linear in own)
    firsts = (0, query, query + key, 0, 0, gate, 0)
    return [_fields(linear, first) for linear, first in zip(own, firsts, strict=True)]


def _fields(linear: QuantizedLinear, first_output: int) -> list[int]:
    tiles, groups, _ = linear.tiles.shape
    return [
        product_address(linear.kind),
        linear.tiles.ctypes.data,
        tiles,
        groups,
        first_output,
        int(linear.kind.group < SCALE_GROUP),
    ]


def _biases(model: PreTrainedModel) -> NDArray[np.float32]:
    """[layers, outputs of the projections], or [layers, 0]."""
    layers = []
    for layer in model.model.layers:
        attention = layer.self_attn
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        biases = [
            np.empty(0, np.float32) if one.bias is None else _floats(one.bias)
            for one in projections
        ]
        layers.append(np.concatenate(biases))
    return np.stack(layers)


def _floats(weight: Tensor) -> NDArray[np.float32]:
    return weight.detach().float().numpy()
