"""Compares what a checkpoint's config claims with what its files hold, before anything is built."""

from pathlib import Path

from cluster.checkpoint_files import pickled_files
from cluster.checkpoints import FETCH_AGAIN, architecture, is_head, parameters

_PACKING = 32
"""Quantized weights are up to eight to a stored number, and other families' layers smaller than a
Llama's."""


def check_weights(path: Path) -> None:
    """Raises ValueError for weights that only unpickling could read, and for a config of a far
    larger model than the weights are of, which would be built before they are compared."""
    stored, pickled = parameters(path), pickled_files(path)
    if stored is None and pickled:
        raise ValueError(
            f"{path} has no safetensors; {', '.join(pickled)} is not read, because a pickle may "
            "run any code: choose a model with safetensors, or convert it where you trust it"
        )
    own = architecture(path)
    claimed = own.num_hidden_layers * own.layer_parameters()
    if not is_head(path):
        claimed += own.vocab_size * own.hidden_size
    if stored is not None and claimed > _PACKING * stored:
        raise ValueError(
            f"{path / 'config.json'} is of a model of some {claimed:,} weights, and its files have "
            f"{stored:,}; {FETCH_AGAIN}"
        )
