"""Turns a growing list of tokens into text that can be sent: whole characters, stop strings cut
off.

Tokens are processed one by one, so that text, usage and log-probabilities do not depend on how many
tokens a verdict contains.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from deployments.ingress.tokenizer import REPLACEMENT, Tokens
from engine.protocol import Finish

_MAX_BROKEN_TOKENS = 3
"""The most tokens that an incomplete UTF-8 sequence can span: one for each of its bytes."""
_MAX_WINDOW = 16
"""After this many tokens without a clean boundary the window is cut all the same."""


class Detokenizer:
    """Returns each character as soon as no later token can change it.

    Decodes a window of tokens that begins at the clean boundary before the last one. Some decoders
    treat the first token of a text specially; within the window this then affects only text that
    was returned before.
    """

    def __init__(self, tokens: Tokens, special: bool = False) -> None:
        """`special`: also decode special tokens."""
        self._tokens = tokens
        self._special = special
        self._window: list[int] = []
        self._clean = 0
        """Number of tokens in the window up to its last clean boundary."""
        self._returned = 0
        """Characters of the window's text that have been returned."""

    def push(self, token: int) -> str:
        if not self._special and self._tokens.is_special(token):
            return ""
        self._window.append(token)
        text = self._tokens.decode(self._window)
        # Replacement characters at the end may be the first bytes of a character that is still
        # incomplete. For as long, some decoders also replace whole characters right before them.
        final = len(text.rstrip(REPLACEMENT))
        added = text[self._returned : final]
        self._returned = max(self._returned, final)
        if final == len(text):
            self._slide(self._clean)
        elif len(self._window) - self._clean > _MAX_WINDOW:
            added += self._cut(text)
        return added

    def flush(self) -> str:
        """The rest of the text after the last token; incomplete bytes stay replacement
        characters."""
        return self._tokens.decode(self._window)[self._returned :]

    def _slide(self, start: int) -> None:
        self._window = self._window[start:]
        self._clean = len(self._window)
        self._returned = len(self._tokens.decode(self._window))

    def _cut(self, text: str) -> str:
        """Cuts the window within a long run of invalid bytes, which would otherwise be decoded
        again and again.

        A cut is valid where the texts of both parts add up to the whole: then no character spans
        it.
        """
        for kept in range(_MAX_BROKEN_TOKENS + 1, _MAX_WINDOW):
            head = self._tokens.decode(self._window[:-kept])
            tail = self._tokens.decode(self._window[-kept:])
            if head + tail == text:
                added = head[self._returned :]
                self._window = self._window[-kept:]
                self._clean = 0
                self._returned = max(0, self._returned - len(head))
                return added
        return ""


class StopStrings:
    """Holds back text that may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that can be returned now, and the stop string after it if one has been
        found."""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            at, stop = min(found, key=lambda one: one[0])
            return text[:at], stop
        shown = len(text) - max((_begun(stop, text) for stop in self._stops), default=0)
        self._held = text[shown:]
        return text[:shown], None

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _begun(stop: str, text: str) -> int:
    """How much of the stop string the text ends with."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


@dataclass(frozen=True, slots=True)
class StopRule:
    """What ends an output, beside its length and the model's own stop tokens."""

    strings: Sequence[str] = ()
    token_ids: Sequence[int] = ()
    min_tokens: int = 0
    """Strings are not searched before the token after so many."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """The text that one verdict's tokens add to an answer."""

    text: str
    tokens: int
    """How many of the verdict's tokens belong to the answer: it ends at a stop string."""
    offsets: tuple[int, ...]
    """Index in the answer's text at which each of these tokens begins."""
    texts: tuple[str, ...]
    """What each of these tokens adds, before stop strings are cut off."""
    finish: Finish | None
    stop_reason: str | int | None = None
    """The stop string, or the token among the rule's, that has ended the output."""


class AnswerText:
    """Builds one choice's text from its tokens."""

    def __init__(
        self,
        tokens: Tokens,
        rule: StopRule,
        start_offset: int = 0,
        special: bool = False,
    ) -> None:
        """`start_offset`: characters that precede the output (an echoed prompt), counted in
        offsets. `special`: also decode special tokens."""
        self._detokenizer = Detokenizer(tokens, special)
        self._stops = StopStrings(rule.strings)
        self._rule = rule
        self._taken = 0
        self._length = start_offset
        """Characters so far, including those held back."""

    def take(self, token_ids: Sequence[int], finish: Finish | None) -> TextPiece:
        added: list[str] = []
        offsets: list[int] = []
        texts: list[str] = []
        for position, token in enumerate(token_ids, 1):
            self._taken += 1
            offsets.append(self._length)
            ends = finish == "stop" and position == len(token_ids)
            texts.append("" if ends else self._detokenizer.push(token))
            text, stop = self._step(texts[-1])
            added.append(text)
            if stop is not None:
                piece = "".join(added), position, tuple(offsets), tuple(texts)
                return TextPiece(*piece, "stop", stop)
        if finish is not None:
            rest = self._detokenizer.flush()
            added += [self._stops.flush(), rest]
            texts[-1:] = [text + rest for text in texts[-1:]]
        reason = token_ids[-1] if finish == "stop" and token_ids else None
        if reason not in self._rule.token_ids:
            reason = None
        piece = "".join(added), len(token_ids), tuple(offsets), tuple(texts)
        return TextPiece(*piece, finish, reason)

    def _step(self, text: str) -> tuple[str, str | None]:
        self._length += len(text)
        if self._taken <= self._rule.min_tokens:
            return text, None
        return self._stops.push(text)


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt in the form in which answers repeat it."""

    text: str
    token_ids: Sequence[int]
    offsets: tuple[int, ...]
    """Index in the text at which each token begins."""


def echo(tokens: Tokens, prompt_ids: Sequence[int]) -> Echo:
    """The text of a prompt, with special tokens as the tokenizer spells them. Takes about 15 ms per
    1,000 tokens."""
    detokenizer = Detokenizer(tokens, special=True)
    added: list[str] = []
    offsets: list[int] = []
    length = 0
    for token in prompt_ids:
        offsets.append(length)
        added.append(detokenizer.push(token))
        length += len(added[-1])
    return Echo("".join([*added, detokenizer.flush()]), prompt_ids, tuple(offsets))
