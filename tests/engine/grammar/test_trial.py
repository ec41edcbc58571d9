"""A grammar that takes too long to compile is given up, whatever it looks like."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.built_in_models import TARGET, model_path
from engine.errors import InvalidRequest
from engine.grammar.compile_call import compile_with, make_compiler
from engine.grammar.compiler import Grammars
from engine.grammar.spec import OutputGrammar
from engine.grammar.trial import Trial
from engine.grammar.vocabulary import token_texts
from tests.actors.hosts.cluster import has_loaded
from tests.engine.grammar.random_outputs import VOCAB

ENOUGH_S = 20.0
PLAIN = OutputGrammar("json_schema", '{"type": "integer"}')
WORDS = "".join(f"[^{chr(97 + number % 26)}]" for number in range(4000))
HURTING: dict[str, OutputGrammar] = {
    "states that no bound on repetitions counts": OutputGrammar("regex", WORDS),
    "the same in a schema": OutputGrammar(
        "json_schema", json.dumps({"type": "string", "pattern": f"^{WORDS}$"}), "response_format"
    ),
    "the same in a grammar": OutputGrammar(
        "grammar", "root ::= " + " ".join(f"[^{chr(97 + n % 26)}]" for n in range(4000))
    ),
    "as many optional properties as there may be": OutputGrammar(
        "json_schema",
        json.dumps({
            "type": "object",
            "properties": {
                f"o{outer}": {
                    "type": "object",
                    "properties": {f"p{inner}": {"type": "string"} for inner in range(60)},
                }
                for outer in range(20)
            },
        }),
        "tools",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    """With so little time that even the small vocabulary of these tests is enough to hurt."""
    trial = Trial(token_texts(model_path(TARGET), VOCAB), 0.05)
    yield trial
    trial.close()


def children_s(trial: Trial) -> float:
    """Processor time of the forks that have ended."""
    times = psutil.Process(trial.pid).cpu_times()
    return float(times.children_user + times.children_system)


@pytest.mark.parametrize("name", HURTING)
def test_what_takes_too_long_is_ended_and_refused_by_name(name: str, trial: Trial) -> None:
    grammar, pid = HURTING[name], trial.pid
    trial.check(PLAIN)
    spent = children_s(trial)
    with pytest.raises(
        InvalidRequest, match=r"takes more than 0\.05 s .* \(limits\.compile_s\)"
    ) as one:
        trial.check(grammar)
    assert one.value.field == grammar.source
    assert children_s(trial) - spent < 0.05 + 0.1, "the kernel counts in hundredths of a second"
    trial.check(PLAIN)
    assert trial.pid == pid, "the next grammar does not wait for a new process"


def test_the_process_is_small(trial: Trial) -> None:
    """Every replica has one."""
    trial.check(PLAIN)
    assert not has_loaded(trial.pid, "libtorch")
    assert psutil.Process(trial.pid).num_threads() == 1, "or a fork of it would not be complete"


def test_what_the_checks_find_is_named() -> None:
    """They run in the process, too, as they may take long."""
    grammars = Grammars(model_path(TARGET), VOCAB, compile_s=ENOUGH_S)
    wrong = OutputGrammar("json_schema", '{"oneOf": [{"const": 1}, {"const": 1}]}', "tools")
    try:
        with pytest.raises(InvalidRequest, match=r"tools: the schema: the branches of oneOf must"):
            grammars.compile(wrong).result()
    finally:
        grammars.close()


def test_all_phases_of_one_grammar_have_the_time_together() -> None:
    """It is compiled again where it is used, so less than twice its time is too little."""
    vocabulary = token_texts(model_path(TARGET), VOCAB)
    pattern = "".join(f"[^{chr(97 + number % 26)}]" for number in range(600))
    grammar = OutputGrammar("regex", pattern)
    compiler = make_compiler(vocabulary)
    seconds = []
    for _ in range(3):  # the first time takes longer
        begun = time.process_time()
        compile_with(compiler, grammar)
        seconds.append(time.process_time() - begun)
    trial = Trial(vocabulary, 1.2 * min(seconds))
    try:
        with pytest.raises(InvalidRequest, match=r"limits\.compile_s"):
            trial.check(grammar)
    finally:
        trial.close()


def test_what_is_wrong_is_left_to_the_compiler(trial: Trial) -> None:
    trial.check(OutputGrammar("regex", "("))


def test_a_process_that_is_lost_is_started_again(trial: Trial) -> None:
    os.kill(trial.pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while psutil.Process(trial.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.01)
    trial.check(PLAIN)


def test_a_grammar_is_tried_before_it_is_compiled() -> None:
    grammars = Grammars(model_path(TARGET), VOCAB, compile_s=0.05)
    try:
        compiled: Any = grammars.compile(PLAIN).result()
        assert compiled.memory_size_bytes > 0
        with pytest.raises(InvalidRequest, match=r"limits\.compile_s"):
            grammars.compile(next(iter(HURTING.values()))).result()
    finally:
        grammars.close()


def test_the_process_ends_with_the_one_that_has_started_it(tmp_path: Path) -> None:
    trial = Trial(token_texts(model_path(TARGET), VOCAB), ENOUGH_S)
    trial.check(PLAIN)
    process = psutil.Process(trial.pid)
    assert trial._process.stdin is not None
    trial._process.stdin.close()
    process.wait(10)
    trial.close()


@pytest.mark.parametrize(
    ("grammar", "refused"),
    [
        (OutputGrammar("regex", "((a*)*)*b"), True),
        (OutputGrammar("grammar", 'root ::= root root | "a" | "b"'), True),
        (OutputGrammar("regex", "(a|b)*c"), False),
        (OutputGrammar("regex", "(.|\\n)*"), False),
        (OutputGrammar("json_object"), False),
        (OutputGrammar("choice", '["yes", "no"]'), False),
    ],
)
def test_a_grammar_whose_outputs_have_ever_more_readings_is_refused(
    grammar: OutputGrammar, refused: bool
) -> None:
    """The 200th token of the first took half a second, while all others of its batch waited."""
    trial = Trial(token_texts(model_path(TARGET), VOCAB), ENOUGH_S)
    try:
        if refused:
            with pytest.raises(InvalidRequest, match="more and more ways"):
                trial.check(grammar)
        else:
            trial.check(grammar)
    finally:
        trial.close()
