"""Whether drafters mean the same text by a token's id as their target."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from actors.hosts.specs import DrafterSpec
from engine.drafters.model import check_tokenizer
from engine.tokenizer import load_tokenizer


def check_tokenizers(target: Path, drafters: Sequence[DrafterSpec]) -> None:
    """Raises IncompatibleDrafter. A config's checkpoints have been compared already, as far as that
    goes without loading (cluster/checkpoints.py)."""
    tokens = _tokens(target)
    for drafter in drafters:
        own = None if drafter.checkpoint is None else _tokens(drafter.checkpoint)
        if tokens is not None and own is not None:
            check_tokenizer(drafter.name, own, tokens)


def _tokens(checkpoint: Path) -> Mapping[str, int] | None:
    """None: weights alone, so there is nothing to compare but the vocabulary's size."""
    if not any(checkpoint.glob("tokenizer*")):
        return None
    tokens: dict[str, int] = load_tokenizer(checkpoint).get_vocab()
    return tokens
