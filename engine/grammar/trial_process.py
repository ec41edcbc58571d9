"""The process that compiles each grammar first, in a fork that the kernel ends if it takes too long
(engine/grammar/trial.py).

Reads a vocabulary, then pairs of a grammar and a number of seconds; answers each with one byte, and
what is wrong with the grammar.
"""

import os
import pickle
import random
import resource
import select
import signal
import sys
from collections import deque
from time import process_time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidRequest
from engine.grammar.spec import OutputGrammar, check_grammar

if TYPE_CHECKING:
    import xgrammar
    from numpy.typing import NDArray

COMPILED, FAILED, TOO_SLOW, TOO_LARGE, AMBIGUOUS, REFUSED = range(6)
MOST_ANSWER = select.PIPE_BUF
"""Bytes of an answer: what a pipe takes, and gives, at once."""
MOST_MEMORY = 2 * 2**30
"""Beyond what the process has before."""
WALKS, STEPS, LAST = 4, 128, 16
REPEATED = 0.75
"""How often a walk goes on with the same token where it can."""
MOST_STEP_S = 0.002
"""Processor time of one of the last tokens of a walk. Usual forms take some hundredths of it."""


def main() -> None:
    import_without_models()
    from engine.grammar.compile_call import make_compiler

    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    compiler = make_compiler(pickle.load(requests))
    while True:
        try:
            grammar, most_s = pickle.load(requests)
        except EOFError:  # the other side has ended
            return
        outcome, problem = tried(compiler, grammar, most_s)
        answers.write(bytes([outcome]) + problem)
        answers.flush()


class _StandIn(ModuleType):
    """A module whose every name is a class that can be made of anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_arguments, **_options: None})


def import_without_models() -> None:
    """Imports xgrammar without torch and transformers, of which compiling needs nothing: 0.3 s of a
    core and 60 MB instead of 2.6 s and 275 MB."""
    present, needless = dict(sys.modules), ("torch", "transformers")
    try:
        sys.modules["torch"] = None  # type: ignore[assignment]  # cannot be imported
        import tvm_ffi  # noqa: F401  # which does without

        sys.modules |= {name: _StandIn(name) for name in needless}
        import xgrammar  # noqa: F401
    except Exception:  # another version, which needs more: with all of it then
        sys.modules.clear()
        sys.modules.update(present)


def tried(
    compiler: "xgrammar.GrammarCompiler", grammar: OutputGrammar, most_s: float
) -> tuple[int, bytes]:
    """What came of checking and compiling the grammar in a fork, and what is wrong with it. This
    process has one thread, so a fork of it is complete."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        outcome = FAILED
        try:
            outcome = _compile(compiler, grammar, most_s)
        except InvalidRequest as error:
            os.write(writing, error.problem.encode(errors="backslashreplace")[: MOST_ANSWER - 1])
            outcome = REFUSED
        finally:
            os._exit(outcome)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as problem:
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status), problem.read()
    return TOO_SLOW if os.WTERMSIG(status) == signal.SIGPROF else TOO_LARGE, b""


def _compile(compiler: "xgrammar.GrammarCompiler", grammar: OutputGrammar, most_s: float) -> int:
    from engine.grammar.compile_call import compile_with

    with open("/proc/self/statm") as sizes:
        present = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (present + MOST_MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    signal.setitimer(signal.ITIMER_PROF, most_s)
    check_grammar(grammar)
    try:
        begun = process_time()
        compiled = compile_with(compiler, grammar)
        # What passes is compiled once more, in the process that uses it.
        left = most_s - process_time() - (process_time() - begun)
        if left <= 0:
            return TOO_SLOW
        signal.setitimer(signal.ITIMER_PROF, left)
        return AMBIGUOUS if is_ambiguous(compiled) else COMPILED
    except Exception as error:
        return TOO_LARGE if "bad_alloc" in str(error) or isinstance(error, MemoryError) else FAILED


def is_ambiguous(compiled: "xgrammar.CompiledGrammar") -> bool:
    """Whether random outputs take longer with each token, because they can be read in more and more
    ways. Where outputs become so later, the request fails (`OutputMatcher`)."""
    import numpy as np
    import xgrammar

    rng = random.Random(0)
    words = np.zeros((1, -(-compiled.tokenizer_info.vocab_size // 32)), np.int32)
    for _ in range(WALKS):
        matcher = xgrammar.GrammarMatcher(compiled)
        times: deque[float] = deque(maxlen=LAST)
        before: NDArray[np.intp] | None = None
        last = -1
        for _ in range(STEPS):
            begun = process_time()
            if not matcher.fill_next_token_bitmask(words):
                break  # anything is allowed
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            if not len(allowed):  # the text is whole
                if before is None:
                    break
                matcher.rollback(1)
                allowed = before
            elif rng.random() < REPEATED and last in allowed:
                allowed = np.array([last])
            before, last = allowed, int(rng.choice(allowed))
            matcher.accept_token(last)
            times.append(process_time() - begun)
            if len(times) == LAST and sum(times) > MOST_STEP_S * LAST:
                return True
    return False


if __name__ == "__main__":
    main()
