"""Refuses model families that the packed forward cannot serve losslessly.

The config is checked before any weight is read. The rest is found by a probe, which runs the model
once and records its calls to the registered attention function.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from engine.attention.hook import IMPLEMENTATION, LayerCall, attention_handled_by
from engine.errors import UnsupportedModel

ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}
PROBE_ROWS = 3
MOST_PROBE_ERROR = {torch.float32: 1e-3}
"""Largest accepted error, relative to the range of the logits. If a request attended to another
one's rows, the error would be far larger."""
MOST_PROBE_ERROR_ROUNDED = 0.1
"""The same for 16-bit dtypes and quantized weights."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The shapes that the probe observed."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def check_config(config: PreTrainedConfig) -> None:
    """Raises UnsupportedModel if the config alone rules the model out."""
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        raise UnsupportedModel(config.model_type, "encoder-decoder models are not causal LMs")
    other_layers = set(getattr(text, "layer_types", None) or ()) - ATTENTION_LAYERS
    if other_layers:
        raise UnsupportedModel(
            config.model_type,
            f"layers of type {', '.join(sorted(other_layers))} keep a state or a mask "
            "that the KV pool cannot roll back or hold",
        )
    ropes = BATCH_DEPENDENT_ROPE & set(_rope_types(getattr(text, "rope_parameters", None) or {}))
    if ropes:
        raise UnsupportedModel(
            config.model_type,
            f"rope type {ropes.pop()!r} makes a request's positions depend on the longest "
            "request in the batch",
        )


def prepare(model: PreTrainedModel) -> AttentionShape:
    """Switches the model to Spindle's attention function and checks that every layer calls it
    once."""
    kind = model.config.model_type
    check_config(model.config)
    if model._is_stateful:
        raise UnsupportedModel(kind, "its recurrent state cannot be rolled back")
    if not model._can_set_attn_implementation():
        raise UnsupportedModel(kind, "it ignores registered attention functions")
    model.set_attn_implementation(IMPLEMENTATION)
    calls = _observe(model)
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    if [call.layer for call in calls] != list(range(layers)):
        raise UnsupportedModel(
            kind,
            f"the registered attention function ran for layers {[call.layer for call in calls]}, "
            f"not once for each of {layers}: it ignores the function or shares keys and values",
        )
    shapes = {(*call.keys.shape, *call.values.shape) for call in calls}
    _, kv_heads, head_dim = calls[0].keys.shape
    if shapes != {(PROBE_ROWS, kv_heads, head_dim) * 2}:
        raise UnsupportedModel(kind, "its layers differ in the shape of their keys and values")
    heads = calls[0].query.shape[1]
    if {call.query.shape for call in calls} != {(PROBE_ROWS, heads, head_dim)}:
        raise UnsupportedModel(kind, "its layers differ in the shape of their queries")
    _check_windows(model, calls)
    return AttentionShape(layers, heads, kv_heads, head_dim)


@torch.inference_mode()
def stock_logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """The stock model's logits after `tokens`, without any of Spindle's code: [vocabulary] in
    fp32."""
    with _stock_attention(model):
        return model(input_ids=tokens[None], use_cache=False).logits[0, -1].float()


@contextmanager
def _stock_attention(model: PreTrainedModel) -> Iterator[None]:
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


def _rope_types(parameters: dict[str, object]) -> Iterator[object]:
    """The rope types of flat parameters, or of parameters per layer type (Gemma 3)."""
    yield parameters.get("rope_type")
    for nested in parameters.values():
        if isinstance(nested, dict):
            yield nested.get("rope_type")


@torch.inference_mode()
def _observe(model: PreTrainedModel) -> list[LayerCall]:
    calls: list[LayerCall] = []

    def record(call: LayerCall) -> Tensor:
        calls.append(call)
        return call.query.new_zeros(*call.query.shape[:2], call.values.shape[2])

    rows = torch.arange(PROBE_ROWS, device=model.device)[None]
    with attention_handled_by(record):
        model(
            input_ids=torch.zeros_like(rows),
            position_ids=rows,
            use_cache=False,
            logits_to_keep=rows[0, :0],
        )
    return calls


def _check_windows(model: PreTrainedModel, calls: list[LayerCall]) -> None:
    """Checks that each layer passes its sliding window to the attention function: a family that
    applies the window only in its masks would attend too far."""
    text = model.config.get_text_config(decoder=True)
    window = getattr(text, "sliding_window", None)
    types = getattr(text, "layer_types", None)
    if types is None:
        types = ["full_attention" if window is None else "sliding_attention"] * len(calls)
    for call, layer_type in zip(calls, types, strict=True):
        expected = window if layer_type == "sliding_attention" else None
        if call.scoring.window != expected:
            raise UnsupportedModel(
                model.config.model_type,
                f"layer {call.layer} ({layer_type}) asks for a window of {call.scoring.window}, "
                f"its config for {expected}",
            )


def check_logits(
    model: PreTrainedModel, logits: Tensor, stock: Tensor, kind: str, *, rounded: bool = False
) -> None:
    """Raises UnsupportedModel if the logits differ by more than rounding. `rounded`: to fewer bits
    than the model's dtype has."""
    most = MOST_PROBE_ERROR_ROUNDED
    if not rounded:
        most = MOST_PROBE_ERROR.get(model.dtype, MOST_PROBE_ERROR_ROUNDED)
    error = float((logits - stock).abs().max() / (stock.amax() - stock.amin()))
    if not error <= most:
        raise UnsupportedModel(
            model.config.model_type,
            f"its {kind} logits differ from the stock model's by {error:.1%} of their range",
        )
