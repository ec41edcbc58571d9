"""Checks that drafters use the same token ids for the same text as their target."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from actors.hosts.specs import DrafterSpec
from cluster.checkpoint_files import has_tokenizer
from engine.tokenizer import check_tokenizer, load_tokenizer


def check_tokenizers(target: Path, drafters: Sequence[DrafterSpec]) -> None:
    """Raises IncompatibleDrafter. The config check has compared all that it can without loading
    tokenizers (cluster/checkpoints.py)."""
    checkpoints = {drafter.name: drafter.checkpoint for drafter in drafters if drafter.checkpoint}
    if not checkpoints:
        return
    tokens = _tokens(target)
    for name, checkpoint in checkpoints.items():
        own = _tokens(checkpoint)
        if tokens is not None and own is not None:
            check_tokenizer(name, own, tokens)


def _tokens(checkpoint: Path) -> Mapping[str, int] | None:
    """The vocabulary; None for a checkpoint without a tokenizer, where only the vocabulary's size
    can be compared."""
    if not has_tokenizer(checkpoint):
        return None
    tokens: dict[str, int] = load_tokenizer(checkpoint).get_vocab()
    return tokens
