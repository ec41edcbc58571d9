"""Registers the attention function that stock transformers models call in every layer.

It finds the running forward's handler in a context variable, not in a keyword argument, because
several families drop keyword arguments on the way down. No mask function is registered, so that
mask creation exits early.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from torch import Tensor, nn
from transformers import AttentionInterface

from engine.attention.context import Scoring
from engine.errors import UnsupportedModel

IMPLEMENTATION = "spindle"


class LayerCall(NamedTuple):
    layer: int
    query: Tensor
    """[rows, heads, head_dim]; keys and values [rows, kv_heads, head_dim]."""
    keys: Tensor
    values: Tensor
    scoring: Scoring


Handler = Callable[[LayerCall], Tensor]
"""Returns each row's attention output, [rows, heads, head_dim]."""

_handler: ContextVar[Handler] = ContextVar("attention_handler")


@contextmanager
def attention_handled_by(handler: Handler) -> Iterator[None]:
    token = _handler.set(handler)
    try:
        yield
    finally:
        _handler.reset(token)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_unused: object,
) -> tuple[Tensor, None]:
    """transformers' signature: [1, heads, rows, head_dim] in, [1, rows, heads, head_dim] out."""
    if softcap is not None or s_aux is not None:
        of = "a cap of its scores" if s_aux is None else "sinks"
        raise UnsupportedModel(
            module.config.model_type, f"its attention has {of}; serve it with backend: vllm"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mixed = _handler.get()(
        LayerCall(
            getattr(module, "layer_idx", -1),
            query[0].transpose(0, 1),
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
            Scoring(scale, sliding_window),
        )
    )
    return mixed.unsqueeze(0), None


AttentionInterface.register(IMPLEMENTATION, _attend)
