"""Tries to compile a grammar in another process, which ends where it takes too long.

xgrammar's compiler cannot be interrupted, and what it takes cannot be read off a grammar's size:
it grows with the states of the automaton and with the vocabulary. So each grammar is compiled by a
fork of a small process first, whose processor time and memory the kernel bounds. The checks of it
(engine/grammar/spec.py) run there as well.
"""

import logging
import os
import pickle
import select
import subprocess
import sys
from pathlib import Path
from threading import Lock

from engine.grammar.compile_call import Vocabulary
from engine.grammar.spec import OutputGrammar
from engine.grammar.trial_process import (
    AMBIGUOUS,
    MOST_ANSWER,
    MOST_MEMORY,
    REFUSED,
    TOO_LARGE,
    TOO_SLOW,
)

_LOG = logging.getLogger("spindle")
_ROOT = Path(__file__).parents[2]
_START_S = 60.0
_WALL_FACTOR = 20
"""Times the processor time that a grammar may take: a machine may be that busy."""


class Trial:
    """Starts its process at once, and again after it has been lost."""

    def __init__(self, vocabulary: Vocabulary, most_s: float) -> None:
        """`most_s`: processor time that one grammar may take, here and in the compilation after
        it."""
        self._vocabulary = vocabulary
        self._most_s = most_s
        self._lock = Lock()
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self, grammar: OutputGrammar) -> None:
        """Raises InvalidRequest if the grammar is wrong, or takes too long or too much memory to
        compile; other errors are left to the compilation itself. Blocks."""
        with self._lock:
            outcome, problem = self._outcome(grammar)
        if outcome == REFUSED:
            raise grammar.invalid(problem)
        if outcome == TOO_SLOW:
            raise grammar.invalid(
                f"takes more than {self._most_s:g} s of a processor to compile "
                "(limits.compile_s); use fewer or shorter bounded lengths, repetitions, optional "
                "properties or alternatives"
            )
        if outcome == AMBIGUOUS:
            raise grammar.invalid(
                "outputs can be read in more and more ways, which takes too long; write each "
                "repetition and alternative so that a text has one reading, such as a* for (a*)*"
            )
        if outcome == TOO_LARGE:
            raise grammar.invalid(
                f"takes more than {MOST_MEMORY >> 20} MiB to compile; use fewer bounded lengths, "
                "repetitions or alternatives"
            )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _outcome(self, grammar: OutputGrammar) -> tuple[int, str]:
        if self._process.poll() is not None:
            _LOG.warning("the process that tries output grammars has ended; it is started again")
            self._process = self._start()
        wait_s = _START_S + _WALL_FACTOR * self._most_s
        try:
            self._send((grammar, self._most_s))
            assert self._process.stdout is not None
            ready, _, _ = select.select([self._process.stdout], [], [], wait_s)
            answer = os.read(self._process.stdout.fileno(), MOST_ANSWER) if ready else b""
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.close()
            raise RuntimeError(
                "the process that tries output grammars was lost, or does not answer"
            )
        return answer[0], answer[1:].decode(errors="ignore")

    def _start(self) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.grammar.trial_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self._process = process
        self._send(self._vocabulary)
        return process

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        data = memoryview(pickle.dumps(message))
        while data:
            data = data[self._process.stdin.write(data) :]
