"""Loads a checkpoint's tokenizer without importing model code, which halves the start of processes
that need only text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import IncompatibleDrafter

_WHOLE_IN_ITS_FILE = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Tokenizer classes that are completely described by tokenizer.json."""


def load_tokenizer(checkpoint: Path) -> Any:
    # Imported here, because it takes a second of a core, which a replica that starts need not wait.
    if (checkpoint / "tokenizer.json").is_file() and _class(checkpoint) in _WHOLE_IN_ITS_FILE:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(checkpoint)
    # AutoTokenizer knows every family's class, but imports torch and model code, which takes
    # seconds.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


def _class(checkpoint: Path) -> str | None:
    config = checkpoint / "tokenizer_config.json"
    return json.loads(config.read_text()).get("tokenizer_class") if config.is_file() else None


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
