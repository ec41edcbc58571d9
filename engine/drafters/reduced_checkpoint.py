"""Checkpoints of drafters with a reduced vocabulary: they propose only `draft_vocab_size` of the
target's tokens, and may take matrices of the vocabulary's size from the target.

As in the `speculators` format, `d2t` has for each token of the reduced vocabulary the difference
between the target's id and its own. A model's output matrix has these rows alone. Its embeddings
are those of all tokens, because it reads any. Either matrix can be left out:

- without embeddings the target's are taken, times `embed_projection` if widths differ;
- without an output matrix its own embeddings' rows are, if the config ties them, or the target's
  output rows, times `output_projection`.
"""

from collections.abc import MutableMapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from cluster.checkpoint_files import weight_files
from engine.checkpoint import load_config
from engine.errors import IncompatibleDrafter, reading
from engine.sampling.vocabulary import ReducedVocabulary

EMBEDDINGS = "embed_tokens.weight"
OUTPUT = "lm_head.weight"
_EMBED_PROJECTION = "embed_projection.weight"
_OUTPUT_PROJECTION = "output_projection.weight"


def load_reduced(
    name: str, checkpoint: Path, target: Path | None, count: int, dtype: torch.dtype
) -> tuple[PreTrainedModel, ReducedVocabulary]:
    """A stock model but for its output matrix, which has `count` rows. `name`: of the lane. Raises
    IncompatibleDrafter."""
    config = load_config(checkpoint)
    tied = getattr(config, "tie_word_embeddings", False)
    config.tie_word_embeddings = False
    weights = read_weights(checkpoint)
    size: int = config.get_text_config(decoder=True).vocab_size
    try:
        target_ids = take_target_ids(weights, count, size)
        _complete(weights, target, target_ids, tied)
    except ValueError as error:
        raise IncompatibleDrafter(name, "model", str(error)) from error
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    width = weights[OUTPUT].shape[1]
    model.set_output_embeddings(nn.Linear(width, count, bias=False, dtype=dtype))
    own = {name: weight.to(dtype) for name, weight in weights.items()}
    try:
        model.load_state_dict(own)
    except RuntimeError as error:
        raise IncompatibleDrafter(name, "model", str(error)) from error
    return model, ReducedVocabulary(target_ids, size)


def _complete(
    weights: MutableMapping[str, Tensor], target: Path | None, target_ids: Tensor, tied: bool
) -> None:
    """Adds the matrices that the checkpoint leaves out."""
    embeddings, output = f"model.{EMBEDDINGS}", OUTPUT
    projections = [weights.pop(name, None) for name in (_EMBED_PROJECTION, _OUTPUT_PROJECTION)]
    if output not in weights and tied and embeddings in weights:
        weights[output] = weights[embeddings][target_ids]
    if embeddings not in weights:
        weights[embeddings] = _projected(weight_of(target, EMBEDDINGS), projections[0], left=True)
    if output not in weights:
        rows = weight_of(target, OUTPUT, EMBEDDINGS)[target_ids]
        weights[output] = _projected(rows, projections[1], left=False)


def _projected(rows: Tensor, projection: Tensor | None, *, left: bool) -> Tensor:
    if projection is None:
        return rows
    to_own_width = projection.T if left else projection
    return rows.float() @ to_own_width.float()


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
