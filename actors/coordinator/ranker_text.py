"""The target's tokenizer for ranking prompts (actors/coordinator/length_ranker.py)."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.tokenizer import load_tokenizer
from policies.scheduling.rank_prompts import Message

_MESSAGE = "message"


class RankerText:
    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    @cached_property
    def _tokenizer(self) -> Any:
        """Loaded at first use, which takes a second: few configs have any."""
        return load_tokenizer(self._checkpoint)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        encoded = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=True
        )
        return list(encoded["input_ids"])

    @cached_property
    def _frame(self) -> tuple[str, str]:
        """What the chat template writes before and behind the only message of a user."""
        framed = self.decode(self.encode_chat([{"role": "user", "content": _MESSAGE}]))
        before, _, behind = framed.partition(_MESSAGE)
        return before, behind

    def request_of(self, prompt: Sequence[int]) -> str:
        """The prompt's text without the template's frame: of many models it has a system prompt,
        the same in all requests."""
        before, behind = self._frame
        return self.decode(prompt).removeprefix(before).removesuffix(behind)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
