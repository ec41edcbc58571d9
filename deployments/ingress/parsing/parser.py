"""Splits an output's text, as it arrives, into reasoning, content and tool calls.

A format is a generator that is sent the text character by character, then "" until it ends. So it
reads like a parser of whole texts, and what it finds does not depend on how the text was cut.
"""

import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next part of a call's arguments, a JSON text."""

    index: int
    text: str


Delta = Content | Reasoning | CallStart | CallArguments


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class Deltas:
    """Collects what a format finds. White space beside calls and reasoning belongs to neither them
    nor the content; all other text is passed on unchanged."""

    def __init__(self, parallel: bool = True) -> None:
        """`parallel`: false keeps the first call only."""
        self.calls = 0
        self._parallel = parallel
        self._found: list[tuple[Callable[[str], Delta], list[str]]] = []
        """Each delta's constructor, and the parts of its text."""
        self._text_kind: type[Content] | type[Reasoning] = Content
        self._space: list[str] = []
        """White space that is text only if more text of its kind follows."""
        self._trim = False
        """Whether white space at this place is dropped."""
        self._read: list[str] | None = None
        self._arguments: Callable[[str], Delta] = partial(CallArguments, 0)

    def record(self, read: str = "") -> None:
        """From here on keeps what is read, after `read`, until a call starts."""
        self._read = [read]

    def recorded(self) -> str:
        """What was read since and turned out to be content."""
        read, self._read = self._read or [], None
        return "".join(read)

    def note(self, character: str) -> None:
        if self._read is not None:
            self._read.append(character)

    def content(self, text: str) -> None:
        self._text(Content, text)

    def reasoning(self, text: str) -> None:
        self._text(Reasoning, text)

    def call(self, name: str) -> None:
        self._space, self._trim, self._read = [], True, None
        self._arguments = partial(CallArguments, self.calls)
        if self._parallel or not self.calls:
            self._found.append((partial(CallStart, self.calls, new_call_id()), [name]))
        self.calls += 1

    def arguments(self, text: str) -> None:
        if self._parallel or self.calls == 1:
            self._append(self._arguments, text)

    def take(self) -> list[Delta]:
        found, self._found = self._found, []
        return [make("".join(parts)) for make, parts in found]

    def end(self) -> None:
        if self._text_kind is Content:
            self._append(Content, "".join(self._space))

    def _text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        if kind is not self._text_kind:
            self._text_kind, self._space, self._trim = kind, [], True
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        body = text.rstrip()
        if body:
            self._append(kind, "".join(self._space) + body)
            self._space = []
        self._space.append(text[len(body) :])

    def _append(self, make: Callable[[str], Delta], text: str) -> None:
        if self._found and self._found[-1][0] is make:
            self._found[-1][1].append(text)
        elif text:
            self._found.append((make, [text]))


Reader = Generator[None, str, T]
"""Is sent one character after the other, and returns what it has found."""
Format = Callable[[Deltas], Reader[str]]
"""Returns what it has read but not used."""


class FormatParser:
    """Parses with formats in sequence: what one leaves unused goes to the next."""

    def __init__(
        self,
        formats: Sequence[Format],
        parallel: bool = True,
        keeps_special: bool = False,
        named: bool = False,
    ) -> None:
        """`keeps_special`: the text must have special tokens, because tags are such. `named`: the
        client has named the function that is called."""
        self.keeps_special = keeps_special
        self.named = named
        self._deltas = Deltas(parallel)
        self._waiting = [make(self._deltas) for make in formats]
        self._running = self._next()

    @property
    def calls(self) -> int:
        """Tool calls that have begun so far."""
        return self._deltas.calls

    def push(self, text: str) -> list[Delta]:
        for character in text:
            self._send(character)
        return self._deltas.take()

    def finish(self) -> list[Delta]:
        """What the end of the text settles."""
        while self._running is not None:
            self._send("")
        self._deltas.end()
        return self._deltas.take()

    def _send(self, character: str) -> None:
        pending = [character]
        while pending and self._running is not None:
            one = pending.pop(0)
            self._deltas.note(one)
            try:
                self._running.send(one)
            except StopIteration as ended:
                self._running = self._next()
                pending = [*ended.value, *pending]

    def _next(self) -> Reader[str] | None:
        if not self._waiting:
            return None
        started = self._waiting.pop(0)
        next(started)
        return started
