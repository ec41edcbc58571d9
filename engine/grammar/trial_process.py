"""The process that compiles each grammar first, in a fork that the kernel ends if it takes too long
(engine/grammar/trial.py).

Reads a vocabulary, then pairs of a grammar and a number of seconds; answers each with one byte.
"""

import os
import pickle
import resource
import signal
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from engine.grammar.spec import OutputGrammar

if TYPE_CHECKING:
    import xgrammar

COMPILED, FAILED, TOO_SLOW, TOO_LARGE = range(4)
MOST_MEMORY = 2 * 2**30
"""Beyond what the process has before."""


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
        answers.write(bytes([tried(compiler, grammar, most_s)]))
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


def tried(compiler: "xgrammar.GrammarCompiler", grammar: OutputGrammar, most_s: float) -> int:
    """What came of compiling the grammar in a fork. This process has one thread, so a fork of it is
    complete."""
    child = os.fork()
    if not child:
        outcome = FAILED
        try:
            outcome = _compile(compiler, grammar, most_s)
        finally:
            os._exit(outcome)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status)
    return TOO_SLOW if os.WTERMSIG(status) == signal.SIGPROF else TOO_LARGE


def _compile(compiler: "xgrammar.GrammarCompiler", grammar: OutputGrammar, most_s: float) -> int:
    from engine.grammar.compile_call import compile_with

    with open("/proc/self/statm") as sizes:
        present = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (present + MOST_MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    signal.setitimer(signal.ITIMER_PROF, most_s)
    try:
        compile_with(compiler, grammar)
    except Exception as error:
        return TOO_LARGE if "bad_alloc" in str(error) or isinstance(error, MemoryError) else FAILED
    return COMPILED


if __name__ == "__main__":
    main()
