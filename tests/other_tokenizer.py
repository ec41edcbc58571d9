"""Built-in models with a tokenizer of their own: the same tokens under other ids, some left out."""

import json
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

from cluster.built_in_models import model_path

_SPECIAL = 5
"""The lowest ids of the zoo's tokenizer, which are never left out."""


def write_renamed(name: str, folder: Path, kept: float = 1.0) -> Path:
    """A checkpoint of the zoo whose ids are shuffled; `kept`: the share of tokens that it keeps."""
    source, rng = model_path(name), np.random.default_rng(0)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    others = rng.permutation(np.arange(_SPECIAL, len(vocabulary)))
    order = rng.permutation([*range(_SPECIAL), *others[: int(kept * len(others))]])
    new_ids = {int(old): new for new, old in enumerate(order)}

    tokenizer["model"]["vocab"] = {
        piece: new_ids[old] for piece, old in vocabulary.items() if old in new_ids
    }
    tokenizer["model"]["merges"] = []
    for added in tokenizer["added_tokens"]:
        added["id"] = new_ids[added["id"]]
    config = json.loads((source / "config.json").read_text()) | {"vocab_size": len(order)}
    for field in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config[field] = new_ids[config[field]]
    weights = load_file(source / "model.safetensors")
    for matrix in weights.keys() & {"model.embed_tokens.weight", "lm_head.weight"}:
        weights[matrix] = weights[matrix][order]

    folder.mkdir()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
