"""The target's tokenizer for ranking prompts (actors/coordinator/length_ranker.py)."""

from collections.abc import Sequence
from pathlib import Path

from engine.tokenizer import load_tokenizer
from policies.scheduling.rank_prompts import Message


class RankerText:
    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = load_tokenizer(checkpoint)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        encoded = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=True
        )
        return list(encoded["input_ids"])

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
