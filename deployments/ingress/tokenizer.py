"""The target's tokenizer with what the API needs: text, chat templates, spellings of single
tokens."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from deployments.ingress.requests.chat_messages import TemplateMessage
from deployments.ingress.turns import Turns
from engine.errors import InvalidRequest
from engine.tokenizer import load_tokenizer

REPLACEMENT = "\ufffd"
"""The replacement character, to which invalid or incomplete UTF-8 decodes."""

LONG_TEXT = 65536
"""Texts with more characters take longer than some 50 ms to encode."""
MAX_CHARACTERS = 2**21
"""The longest text that is encoded: to make, and to free, the list of a million tokens takes a
tenth of a second, while no other thread runs."""

T = TypeVar("T")
_RESERVED = frozenset(
    ("messages", *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
)
"""Names that are no variables of a chat template."""
_MAX_ERROR = 100

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_BYTE_OF_CHARACTER = {character: byte for byte, character in bytes_to_unicode().items()}


class Tokens:
    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = load_tokenizer(checkpoint)
        self._special = frozenset(self._tokenizer.all_special_ids)
        self._longest_token = max(map(len, self._tokenizer.get_vocab()))
        self._turns = Turns()
        self._spellings: dict[int, tuple[str, list[int] | None]] = {}
        template = str(self._tokenizer.chat_template)
        self._template_words = frozenset(re.findall(r"\w+", template))

    def __len__(self) -> int:
        return len(self._tokenizer)

    def is_special(self, token: int) -> bool:
        return token in self._special

    def spells_special(self, text: str) -> bool:
        """Whether the text is a single special token."""
        return self._tokenizer.get_vocab().get(text) in self._special

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens' text, including special tokens."""
        return str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def encode_blocking(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encodes in the calling thread; takes half a second per megabyte."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def most_characters(self, tokens: int) -> int:
        """A text with more characters has more than so many tokens, or is too long to encode."""
        return min(tokens * self._longest_token, MAX_CHARACTERS)

    async def encode_all(
        self, texts: Sequence[str], add_special_tokens: bool = True, client: str = ""
    ) -> list[list[int]]:
        """Encodes the texts together in a thread, so that the event loop can go on serving
        streams. `client`: whose turn it takes."""

        def encode() -> list[list[int]]:
            return [
                ids
                for group in _groups(texts)
                for ids in self._encode_group(group, add_special_tokens)
            ]

        return await self.in_turn(encode, sum(map(len, texts)), client)

    def _encode_group(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        encoded: dict[str, list[list[int]]] = self._tokenizer(
            texts,
            add_special_tokens=add_special_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return encoded["input_ids"]

    async def in_turn(self, work: Callable[[], T], size: int, client: str) -> T:
        """Does work on so many characters or tokens in a thread, when it is the client's turn."""
        return await self._turns.run(work, client, size > LONG_TEXT)

    async def encode_chat(
        self,
        messages: Iterable[TemplateMessage],
        tools: Iterable[dict[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        client: str = "",
        size: int = 0,
    ) -> list[int]:
        """Renders the messages with the checkpoint's chat template; its errors are reported as the
        client's. `messages`, `tools`: made in the thread that renders them. `size`: about how many
        characters they have."""
        options = {
            **self.used_variables(variables or {}),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }

        def encode() -> list[int]:
            try:
                text = self._render(list(messages), list(tools), options)
            except Exception as error:  # templates may raise anything
                problem = str(error)[:_MAX_ERROR]
                raise InvalidRequest("messages", f"the chat template refused: {problem}") from error
            if len(text) > MAX_CHARACTERS:
                problem = f"are longer than {MAX_CHARACTERS} characters; send less at once"
                raise InvalidRequest("messages", problem)
            try:
                text.encode()
            except UnicodeEncodeError as error:  # of what the template shows as JSON
                problem = f"or tools or variables are no Unicode text: {error.reason}"
                raise InvalidRequest("messages", problem) from None
            return self._encode_group([text], add_special_tokens=False)[0]

        return await self.in_turn(encode, size, client)

    def used_variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the variables that the chat template uses; raises InvalidRequest for a name that
        cannot be one."""
        for name in variables:
            if name in _RESERVED:
                raise InvalidRequest("chat_template_kwargs", f"{name} cannot be set there")
        return {name: value for name, value in variables.items() if name in self._template_words}

    @property
    def shows_tools(self) -> bool:
        """Whether the chat template shows tools to the model."""
        return "tools" in self._template_words

    def _render(
        self,
        messages: list[TemplateMessage],
        tools: list[dict[str, Any]],
        options: Mapping[str, Any],
    ) -> str:
        given = tools or None
        if "developer" not in self._tokenizer.get_chat_template(tools=given):
            # The role's older name, which all templates know.
            messages = [
                {**one, "role": "system"} if one["role"] == "developer" else one for one in messages
            ]
        return str(
            self._tokenizer.apply_chat_template(messages, tools=given, tokenize=False, **options)
        )

    def spelling(self, token: int) -> tuple[str, list[int] | None]:
        """One token's text and bytes, as listed among log-probabilities. Bytes that are not valid
        text by themselves are spelled out, as in OpenAI's API."""
        if token not in self._spellings:
            self._spellings[token] = self._spell(token)
        return self._spellings[token]

    def _spell(self, token: int) -> tuple[str, list[int] | None]:
        # Some decoders strip the first space of a text, so the token is decoded in second place.
        text = self.decode([token, token])[len(self.decode([token])) :]
        if REPLACEMENT not in text:
            return text, list(text.encode())
        piece = str(self._tokenizer.convert_ids_to_tokens(token))
        if match := _BYTE_TOKEN.fullmatch(piece):
            raw = [int(match[1], 16)]
        elif all(character in _BYTE_OF_CHARACTER for character in piece):
            raw = [_BYTE_OF_CHARACTER[character] for character in piece]
        else:
            return text, None
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in their order, so many at once that it takes no longer than one of the longest."""
    group: list[str] = []
    for text in texts:
        if group and sum(map(len, group)) + len(text) > MAX_CHARACTERS:
            yield group
            group = []
        group.append(text)
    yield group
