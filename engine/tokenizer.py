"""Loads a checkpoint's tokenizer without importing model code, which halves the start of processes
that need only text."""

from pathlib import Path
from typing import Any

from cluster.checkpoint_files import read_json
from engine.errors import reading

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
