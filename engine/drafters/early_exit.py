"""The first layers of the target as a drafter (kind `early_exit`), as in LayerSkip, without a
head of its own.

Behind the last of them come the target's own final norm and output matrix. It is an ordinary model
drafter with KV of its own, so it runs anywhere, on another device than the target too.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from engine.checkpoint import load_config, load_whole
from engine.drafters.loading import LoadedDrafter, auto_dtype, loaded_drafter
from engine.errors import IncompatibleDrafter, IncompleteCheckpoint
from engine.families import check_config
from engine.grammar.compiler import Grammars

_PER_LAYER = ("layer_types", "no_rope_layers")
"""Fields of configs that list something for each layer."""


def load_early_exit(
    name: str,
    checkpoint: Path,
    *,
    dtype: torch.dtype | None,
    device: str,
    kv_tokens: int,
    target_vocab_size: int,
    layers: int,
) -> LoadedDrafter:
    """`checkpoint`: the target's, of which only the weights of these layers are read. Raises
    IncompatibleDrafter."""
    with _without_load_report():
        try:
            model = load_whole(
                checkpoint,
                config=_shortened(name, load_config(checkpoint), layers),
                dtype=dtype or auto_dtype(checkpoint, device),
            )
        except IncompleteCheckpoint as error:
            raise IncompatibleDrafter(name, "layers", str(error)) from error
    return loaded_drafter(
        name,
        model.to(device),
        Grammars.of(checkpoint, target_vocab_size),
        kv_tokens=kv_tokens,
        target_vocab_size=target_vocab_size,
    )


@contextmanager
def _without_load_report() -> Iterator[None]:
    """It would list the layers that are left out as unexpected."""
    logger = logging.getLogger("transformers.modeling_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _shortened(name: str, config: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    check_config(config)
    text = config.get_text_config(decoder=True)
    if not 1 <= layers < text.num_hidden_layers:
        raise IncompatibleDrafter(
            name,
            "layers",
            f"{layers} of the target's {text.num_hidden_layers}: not 1 or more, and fewer than all",
        )
    text.num_hidden_layers = layers
    for field in _PER_LAYER:
        if getattr(text, field, None) is not None:
            setattr(text, field, getattr(text, field)[:layers])
    return config
