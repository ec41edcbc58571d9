"""Loads a checkpoint's tokenizer without importing model code, which halves the start of processes
that need only text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.checkpoint_files import read_json
from engine.errors import IncompatibleDrafter, reading

_WHOLE_IN_ITS_FILE = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Tokenizer classes that are completely described by tokenizer.json."""


def load_tokenizer(checkpoint: Path) -> Any:
    """Raises UnreadableCheckpoint."""
    with reading(checkpoint / "tokenizer.json"):
        return _load(checkpoint)


def _load(checkpoint: Path) -> Any:
    # Imported here, because it takes a second of a core, which a replica that starts need not wait.
    if (checkpoint / "tokenizer.json").is_file() and _class(checkpoint) in _WHOLE_IN_ITS_FILE:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(checkpoint, trust_remote_code=False)
    # AutoTokenizer knows every family's class, but imports torch and model code, which takes
    # seconds.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False)


def _class(checkpoint: Path) -> str | None:
    return read_json(checkpoint / "tokenizer_config.json").get("tokenizer_class")


def check_tokenizer(
    drafter: str, drafter_tokens: Mapping[str, int], target_tokens: Mapping[str, int]
) -> None:
    """Both tokenizers' `get_vocab()` must be equal, so that an id means the same text."""
    differing = drafter_tokens.items() ^ target_tokens.items()
    if differing:
        token, number = min(differing)
        raise IncompatibleDrafter(
            drafter,
            "tokenizer",
            f"{len(differing)} entries differ from the target's, the first is {token!r} = {number}",
        )
