"""Compiles output grammars for one tokenizer, on a thread, with a bounded cache.

The tokenizer and xgrammar are loaded on that thread too, with the first grammar or ahead of it.
Where the time to compile is bounded, grammars are tried first (engine/grammar/trial.py).
"""

import asyncio
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Self

import numpy as np

from cluster.checkpoint_files import has_tokenizer
from engine.errors import InvalidRequest
from engine.grammar.spec import OutputGrammar, check_grammar, check_length

if TYPE_CHECKING:
    import xgrammar

    from engine.grammar.trial import Trial

MAX_COMPILED = 256
MAX_COMPILED_BYTES = 128 * 2**20
"""For all compiled grammars that are kept: one takes 2 MB with its whitespace, or more."""
_PLACE_IN_SOURCE = re.compile(r"^(\[[\d:]+\] \S+:\d+: )?")
_MAX_MESSAGE = 300


class Grammars:
    """Grammars compiled for the tokenizer of a checkpoint."""

    def __init__(self, checkpoint: Path, vocab_size: int, compile_s: float | None = None) -> None:
        """`compile_s`: processor time that checking and compiling one grammar may take; None: any,
        for grammars that another process has compiled before."""
        self.vocab_size = vocab_size
        self._checkpoint = checkpoint
        self._compiler: xgrammar.GrammarCompiler | None = None
        self._compile_s = compile_s
        self._trial: Trial | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._lock = Lock()
        self._compiled: dict[OutputGrammar, Future[xgrammar.CompiledGrammar]] = {}
        """Least recently used first."""

    @classmethod
    def of(cls, checkpoint: Path, vocab_size: int, compile_s: float | None = None) -> Self | None:
        """None for a checkpoint without a tokenizer, which could not read any grammar."""
        return cls(checkpoint, vocab_size, compile_s) if has_tokenizer(checkpoint) else None

    async def check(self, grammar: OutputGrammar) -> None:
        """Raises InvalidRequest naming the client's field if the grammar cannot be followed."""
        try:
            await asyncio.shield(asyncio.wrap_future(self.compile(grammar)))
        except InvalidRequest as error:
            # It is kept for all requests with this grammar. Raised again, it would name the first
            # one's field, and collect the frames of every later one.
            error.__traceback__ = None
            raise grammar.invalid(error.problem) from None

    def close(self) -> None:
        """Ends the process in which grammars are tried, if there is one."""
        if self._trial is not None:
            self._trial.close()

    def has(self, grammar: OutputGrammar) -> bool:
        """Whether it has been compiled, or waits for it."""
        return grammar in self._compiled

    def load_ahead(self) -> "Future[xgrammar.GrammarCompiler]":
        """Loads what every grammar needs, so that the first one does not wait for it. An error is
        raised again for the first one."""
        return self._thread.submit(self._loaded)

    def compile(self, grammar: OutputGrammar) -> "Future[xgrammar.CompiledGrammar]":
        """The compiled grammar, or InvalidRequest, as soon as it is there."""
        with self._lock:
            compiled = self._compiled.pop(grammar, None)
            if compiled is None:
                compiled = self._thread.submit(self._compile, grammar)
            self._compiled[grammar] = compiled
            while len(self._compiled) > 1 and self._is_full():
                del self._compiled[next(iter(self._compiled))]
        return compiled

    def _is_full(self) -> bool:
        kept = [one for one in self._compiled.values() if one.done() and not one.exception()]
        taken = sum(one.result().memory_size_bytes for one in kept)
        return len(self._compiled) > MAX_COMPILED or taken > MAX_COMPILED_BYTES

    def _compile(self, grammar: OutputGrammar) -> "xgrammar.CompiledGrammar":
        from engine.grammar.compile_call import compile_with

        check_length(grammar)
        compiler = self._loaded()
        if self._trial is None:
            check_grammar(grammar)
        else:
            self._trial.check(grammar)
        try:
            compiled = compile_with(compiler, grammar)
        except Exception as error:  # of its C++ code, RuntimeError mostly
            problem = _PLACE_IN_SOURCE.sub("", str(error).strip())
            raise grammar.invalid(f"cannot be compiled: {problem[:_MAX_MESSAGE]}") from None
        if not allows_output(compiled, self.vocab_size):
            raise grammar.invalid("allows no output: no token can begin one")
        return compiled

    def _loaded(self) -> "xgrammar.GrammarCompiler":
        """Loads the compiler at the first call. Runs on the thread only."""
        if self._compiler is None:
            from engine.grammar.compile_call import make_compiler
            from engine.grammar.trial import Trial
            from engine.grammar.vocabulary import token_texts

            vocabulary = token_texts(self._checkpoint, self.vocab_size)
            if self._compile_s is not None:
                self._trial = Trial(vocabulary, self._compile_s)
            self._compiler = make_compiler(vocabulary)
        return self._compiler


def allows_output(compiled: "xgrammar.CompiledGrammar", vocab_size: int) -> bool:
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compiled)
    words = np.zeros((1, -(-vocab_size // 32)), np.int32)
    return not matcher.fill_next_token_bitmask(words) or bool(words.any())
