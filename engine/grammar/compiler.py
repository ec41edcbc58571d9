"""Compiles output grammars for one tokenizer with llguidance, on a thread, with a bounded cache.

The tokenizer and llguidance are loaded on that thread too, with the first grammar or ahead of it.
llguidance itself refuses what it would follow only in part, and bounds what compiling a grammar and
following it may take.
"""

import asyncio
import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from cluster.checkpoint_files import has_tokenizer
from engine.errors import InvalidRequest
from engine.grammar.spec import OutputGrammar, check_grammar

if TYPE_CHECKING:
    import llguidance

MAX_COMPILED = 64
"""A usual one takes a quarter of a megabyte, and none more than some 40 MB (MAX_STATES)."""
MAX_STATES = 20_000
"""The most states of one grammar's automaton, which take one or two kilobytes each."""
MAX_PATTERNS, MAX_COUNTED = 100, 20_000
"""All pattern properties of a schema, whose overlaps are computed, and the sum of its numbers of
items and properties, which become symbols: compiling so many takes a tenth of a second."""
WHITESPACE = r"[ \n\r\t]{0,16}"
"""Between two elements of JSON; bounded, so that a model cannot go on with spaces for ever."""
_MAX_MESSAGE = 300
_END = "<|spindle: end of output|>"


class Compiled(NamedTuple):
    matcher: "llguidance.LLMatcher"
    """At the beginning of an output; to be copied."""
    end: int
    """llguidance's token for the end of an output, after all others: stop tokens are those of each
    request, which its matcher sees to."""


class Grammars:
    """Grammars compiled for the tokenizer of a checkpoint."""

    def __init__(self, checkpoint: Path, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._checkpoint = checkpoint
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._lock = Lock()
        self._compiled: dict[OutputGrammar, Future[Compiled]] = {}
        """Least recently used first."""

    @classmethod
    def of(cls, checkpoint: Path, vocab_size: int) -> Self | None:
        """None for a checkpoint without a tokenizer, which could not read any grammar."""
        return cls(checkpoint, vocab_size) if has_tokenizer(checkpoint) else None

    async def check(self, grammar: OutputGrammar) -> None:
        """Raises InvalidRequest naming the client's field if the grammar cannot be followed."""
        try:
            await asyncio.shield(asyncio.wrap_future(self.compile(grammar)))
        except InvalidRequest as error:
            # It is kept for all requests with this grammar. Raised again, it would name the first
            # one's field, and collect the frames of every later one.
            error.__traceback__ = None
            raise grammar.invalid(error.problem) from None

    def has(self, grammar: OutputGrammar) -> bool:
        """Whether it has been compiled, or waits for it."""
        return grammar in self._compiled

    def load_ahead(self) -> "Future[llguidance.LLTokenizer]":
        """Loads what every grammar needs, so that the first one does not wait for it. An error is
        raised again for the first one."""
        return self._thread.submit(self._loaded)

    def compile(self, grammar: OutputGrammar) -> Future[Compiled]:
        """The compiled grammar, or InvalidRequest, as soon as it is there."""
        with self._lock:
            compiled = self._compiled.pop(grammar, None)
            if compiled is None:
                compiled = self._thread.submit(self._compile, grammar)
                # What still compiles stays, or requests that wait would begin it again and again.
                done = [one for one, future in self._compiled.items() if future.done()]
                for one in done[: max(0, len(self._compiled) + 1 - MAX_COMPILED)]:
                    del self._compiled[one]
            self._compiled[grammar] = compiled
        return compiled

    def _compile(self, grammar: OutputGrammar) -> Compiled:
        from llguidance import LLMatcher, LLParserLimits

        check_grammar(grammar)
        tokenizer = self._loaded()
        limits = LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)
        try:
            matcher = LLMatcher(tokenizer, definition(grammar), log_level=0, limits=limits)
            matcher.compute_bitmask()  # finds what no output can begin with
            problem = matcher.get_error()
        except Exception as error:  # some of its functions in Python raise nothing more precise
            problem = str(error)
        if problem.startswith("NoExtension"):
            raise grammar.invalid("allows no output: no token can begin one")
        if problem:
            raise grammar.invalid(f"cannot be compiled: {problem[:_MAX_MESSAGE]}")
        return Compiled(matcher, tokenizer.eos_token)

    def _loaded(self) -> "llguidance.LLTokenizer":
        """Loads the tokenizer at the first call. Runs on the thread only."""
        if self._tokenizer is None:
            from llguidance.hf import from_tokenizer

            from engine.tokenizer import load_tokenizer

            tokenizer = load_tokenizer(self._checkpoint)
            tokenizer.backend_tokenizer.add_special_tokens([_END])
            end = tokenizer.backend_tokenizer.token_to_id(_END)
            self._tokenizer = from_tokenizer(tokenizer, max(self.vocab_size, end + 1), end)
        return self._tokenizer


def definition(grammar: OutputGrammar) -> str:
    """In llguidance's own form. Raises ValueError."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    match grammar.kind:
        case "json_object" | "json_schema":
            schema = "{}" if grammar.schema.strip() == "true" else grammar.schema
            definition = LLMatcher.grammar_from_json_schema(
                schema, overrides={"whitespace_pattern": WHITESPACE}
            )
            # Read after llguidance has bounded its depth. These options would loosen a schema.
            parsed = json.loads(schema)
            if isinstance(parsed, dict) and "x-guidance" in parsed:
                raise ValueError("x-guidance: options of the compiler are not the client's")
            _check_counts(parsed)
            return definition
        case "regex":
            return LLMatcher.grammar_from_regex(_CLASS.sub(_ascii_class, grammar.text))
        case "choice":
            return LLMatcher.grammar_from_regex("|".join(map(_escaped, grammar.choices)))
        case "grammar":
            return LLMatcher.grammar_from_lark(gbnf_to_lark(_checked(grammar.text)))


_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")


def _check_counts(schema: Any) -> None:
    patterns, counted, waiting = 0, 0, [schema]
    while waiting:
        match waiting.pop():
            case dict() as members:
                named = members.get("patternProperties")
                patterns += len(named) if isinstance(named, dict) else 0
                counts = [members.get(name) for name in _COUNTS]
                counted += sum(max(0, count) for count in counts if isinstance(count, int))
                waiting += members.values()
            case list() as items:
                waiting += items
    if patterns > MAX_PATTERNS:
        raise ValueError(f"patternProperties: more than {MAX_PATTERNS} in the schema; use fewer")
    if counted > MAX_COUNTED:
        raise ValueError(f"{', '.join(_COUNTS)}: more than {MAX_COUNTED} together; lower them")


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_RULE = re.compile(r"^\s*([\w-]+)\s*::=", re.MULTILINE)
_TERMINAL = re.compile(r'"(?:\\.|[^"\\])*"|#[^\n]*|\[(?:\\.|[^\]\\])*\]', re.DOTALL)
"""A text, a comment or a class of signs."""
_SET_OPERATION = re.compile("&&|--|~~")


def _checked(ebnf: str) -> str:
    """Refuses and replaces what `gbnf_to_lark` reads as something else, without saying so."""
    names = _RULE.findall(ebnf)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"rule {twice[0]} is defined twice")
    classes = (found for found in _TERMINAL.findall(ebnf) if found[0] == "[")
    if any(map(_SET_OPERATION.search, classes)):
        raise ValueError("&&, -- and ~~ in a class of signs need a backslash before each sign")
    return _ESCAPE.sub(_unescaped, ebnf)


def _unescaped(escape: re.Match[str]) -> str:
    """The sign that its number stands for."""
    if escape[1][0] not in "uU" or len(escape[1]) == 1:
        return escape[0]
    sign = chr(int(escape[1][1:], 16))
    if sign < " ":
        return f"\\x{ord(sign):02x}"
    return f"\\{sign}" if sign in '"\\[]^-' else sign


_CLASS = re.compile(r"\\(.)", re.DOTALL)
_DIGIT, _WORD = "0-9", "0-9A-Za-z_"
_ASCII = {"d": f"[{_DIGIT}]", "D": f"[^{_DIGIT}]", "w": f"[{_WORD}]", "W": f"[^{_WORD}]"}


def _ascii_class(escape: re.Match[str]) -> str:
    """Digits and letters are those of ASCII, as in the patterns of a schema."""
    return _ASCII.get(escape[1], escape[0])


def _escaped(text: str) -> str:
    """A pattern that only this text matches."""
    return "".join(sign if sign.isalnum() else f"\\u{{{ord(sign):x}}}" for sign in text)
