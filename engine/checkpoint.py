"""What transformers reads of a checkpoint. Code that the checkpoint brings along never runs, and
weights are never unpickled."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from cluster.checkpoint_files import stop_token_ids
from cluster.checkpoints import parameters
from engine.errors import (
    IncompleteCheckpoint,
    UnreadableCheckpoint,
    UnsupportedModel,
    reading,
)
from engine.families import check_config

_MOST_LACKING = 2
"""A checkpoint that lacks no more than half of its weights is still loaded, to name them."""


def load_config(checkpoint: str | Path) -> PreTrainedConfig:
    """Raises UnreadableCheckpoint."""
    with reading(Path(checkpoint) / "config.json"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
        return config


def load_stock(path: str | Path, dtype: torch.dtype) -> PreTrainedModel:
    """Loads a checkpoint with transformers into host memory."""
    config = load_config(path)
    check_config(config)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedModel(config.model_type, "transformers has no causal LM of this type")
    model = load_whole(path, dtype=dtype)
    model.generation_config.eos_token_id = list(stop_token_ids(Path(path))) or None
    return model


def load_whole(checkpoint: str | Path, **options: Any) -> PreTrainedModel:
    """With the options of transformers, which fills weights that the checkpoint lacks with random
    numbers. Raises IncompleteCheckpoint instead, or UnreadableCheckpoint."""
    _check_size(Path(checkpoint), options.get("config") or load_config(checkpoint))
    with reading(Path(checkpoint)):
        model, info = AutoModelForCausalLM.from_pretrained(
            checkpoint,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
            **options,
        )
    if info["missing_keys"]:
        raise IncompleteCheckpoint(str(checkpoint), sorted(info["missing_keys"]))
    return model


def _check_size(checkpoint: Path, config: PreTrainedConfig) -> None:
    """Refuses a config of a far larger model than the files hold, before transformers allocates it
    and compares the two."""
    with reading(checkpoint):
        stored = parameters(checkpoint)
    with reading(checkpoint / "config.json"), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(deepcopy(config), trust_remote_code=False)
    needed = model.num_parameters()
    if stored is not None and needed > _MOST_LACKING * stored:
        problem = f"it is of a model of {needed:,} weights, and the files have {stored:,}"
        raise UnreadableCheckpoint(str(checkpoint / "config.json"), problem)
