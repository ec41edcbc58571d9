"""What transformers reads of a checkpoint. Code that the checkpoint brings along never runs, and
weights are never unpickled."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from engine.errors import IncompleteCheckpoint, reading


def load_config(checkpoint: str | Path) -> PreTrainedConfig:
    """Raises UnreadableCheckpoint."""
    with reading(Path(checkpoint) / "config.json"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
        return config


def load_whole(checkpoint: str | Path, **options: Any) -> PreTrainedModel:
    """With the options of transformers, which fills weights that the checkpoint lacks with random
    numbers. Raises IncompleteCheckpoint instead, or UnreadableCheckpoint."""
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
