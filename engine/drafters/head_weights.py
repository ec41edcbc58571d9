"""The weights of a head in the `speculators` format: it scores a reduced vocabulary of
`draft_vocab_size` of the target's tokens, and may take matrices of the vocabulary's size from the
target.

`d2t` has for each token of the reduced vocabulary the difference between the target's id and its
own. The output matrix has these rows alone; the embeddings are those of all tokens, because the
head reads any.
"""

from collections.abc import MutableMapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from cluster.checkpoint_files import weight_files
from engine.errors import reading

EMBEDDINGS = "embed_tokens.weight"
OUTPUT = "lm_head.weight"


def read_weights(path: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in weight_files(path):
        with reading(file):
            weights |= load_file(file)
    return weights


def take_target_ids(weights: MutableMapping[str, Tensor], count: int, vocab_size: int) -> Tensor:
    """Removes the maps of the two vocabularies from the weights. Returns the target's ids,
    ascending, and puts the rows of the output matrix in their order."""
    offsets = weights.pop("d2t", None)
    weights.pop("t2d", None)
    own = torch.arange(count)
    if offsets is None and count != vocab_size:
        raise ValueError(f"it proposes {count} of {vocab_size} tokens, but no d2t names them")
    if offsets is not None and offsets.shape != own.shape:
        shape = "×".join(map(str, offsets.shape))
        raise ValueError(f"d2t has {shape} tokens, draft_vocab_size is {count}")
    if offsets is not None and offsets.is_floating_point():
        raise ValueError(f"d2t has numbers of {offsets.dtype}, not whole ones")
    if OUTPUT in weights and len(weights[OUTPUT]) != count:
        raise ValueError(f"{OUTPUT} has {len(weights[OUTPUT])} rows, draft_vocab_size is {count}")
    target_ids, order = (own if offsets is None else own + offsets).sort()
    if target_ids[0] < 0 or target_ids[-1] >= vocab_size or len(target_ids.unique()) < count:
        raise ValueError(f"d2t names tokens twice, or beyond the {vocab_size} of the target")
    if OUTPUT in weights and not torch.equal(order, own):
        weights[OUTPUT] = weights[OUTPUT][order]
    return target_ids


def weight_of(target: Path | None, *names: str) -> Tensor:
    """The first of these weights that the checkpoint has; tied ones are stored under one name."""
    files = [] if target is None else weight_files(target)
    for name in names:
        for file in files:
            with reading(file), safe_open(file, framework="pt") as stored:
                matching = [key for key in list(stored.keys()) if key.endswith(name)]
                if matching:
                    found: Tensor = stored.get_tensor(matching[0])
                    return found
    raise ValueError(f"{target} has no weight named {names[0]}, which the drafter leaves out")
