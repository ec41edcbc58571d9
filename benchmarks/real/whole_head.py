"""A head with its output matrix, as vLLM reads it."""

from pathlib import Path
from shutil import copy

import torch
from safetensors.torch import save_file

from cluster.checkpoints import eagle3_shape
from engine.drafters.head_weights import (
    EMBEDDINGS,
    OUTPUT,
    read_weights,
    take_target_ids,
    weight_of,
)


def whole_head(head: Path, target: Path, folder: Path) -> Path:
    """The head itself if it has an output matrix, else a copy in `folder` with the target's rows.
    vLLM would take the first rows of the target's matrix, which are other tokens'."""
    weights = read_weights(head)
    if OUTPUT in weights:
        return head
    matrix = weight_of(target, OUTPUT, EMBEDDINGS)
    size = eagle3_shape(head, None).draft_vocab_size
    target_ids = take_target_ids(dict(weights), size, len(matrix))
    weights[OUTPUT] = matrix[target_ids]
    weights["d2t"] = target_ids - torch.arange(size)
    copy(head / "config.json", folder)
    save_file(weights, folder / "model.safetensors")
    return folder
