"""The target's tokenizer for ranking prompts (actors/coordinator/length_ranker.py)."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.tokenizer import load_tokenizer
from policies.scheduling.rank_prompts import Message

_MESSAGE = "[the only message of a user]"


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

    def requests_of(self, prompts: Iterable[Sequence[int]]) -> list[str]:
        """The prompts' texts without what the chat template writes around a user's only message: of
        many models that is a system prompt, the same in all requests."""
        # Rendered each time: some templates have today's date.
        framed = self.decode(self.encode_chat([{"role": "user", "content": _MESSAGE}]))
        before, _, behind = framed.partition(_MESSAGE)
        return [self.decode(one).removeprefix(before).removesuffix(behind) for one in prompts]

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
