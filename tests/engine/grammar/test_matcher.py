"""What is allowed depends on the grammar and the output alone, whatever was asked before."""

import json
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.grammar import compiler
from engine.grammar import matcher as matcher_module
from engine.grammar.compiler import Grammars
from engine.grammar.gate import GrammarGate, Ready
from engine.grammar.matcher import GrammarStuck, GrammarViolated, OutputMatcher
from engine.grammar.spec import OutputGrammar
from engine.protocol import Failed, Prefix, Start, Verdict, VerifyOrder
from engine.sampling.cpu_kernels import allow_only
from engine.sampling.params import SamplingParams
from engine.sampling.torch_kernels import allow_only_torch
from engine.soft_state import CommittedTokens, HeldRequest
from policies.tree import DraftTree
from tests.engine.grammar.oracle import VOCAB, allowed_by, grammars
from tests.engine.grammar.random_outputs import STOP, random_output, tokens_of
from tests.engine.grammar.schemas import FOLLOWED

NESTED = OutputGrammar("json_schema", json.dumps(FOLLOWED["nested"]))
WORD = OutputGrammar("regex", "ab*")


def params(grammar: OutputGrammar, **fields: object) -> SamplingParams:
    return SamplingParams(stop_token_ids=(STOP,), grammar=grammar, **fields)  # type: ignore[arg-type]


def matcher(grammar: OutputGrammar, **fields: object) -> OutputMatcher:
    compiled = grammars().compile(grammar).result()
    return OutputMatcher(compiled, params(grammar, **fields), VOCAB)


def ids(text: str) -> list[int]:
    """One token for each sign."""
    return [ord(sign) - ord("!") + 5 for sign in text]


def allowed(one: OutputMatcher, path: Sequence[int] = ()) -> list[int]:
    return tokens_of(one.allowed(path)).tolist()


def test_masks_are_the_same_in_any_order_and_after_any_draft() -> None:
    """Prefixes, drafts and rewritten outputs of one request, in random order."""
    rng = np.random.default_rng(1)
    outputs = [
        output
        for _ in range(12)
        if (output := random_output(grammars().compile(NESTED).result(), rng)) is not None
    ]
    one, expected = matcher(NESTED), allowed_by(params(NESTED))
    for _ in range(150):
        output = outputs[rng.integers(len(outputs))]
        begin, end = sorted(rng.integers(len(output) + 1, size=2).tolist())
        one.follow(output[:begin])
        path = output[begin:end]
        assert allowed(one, path) == np.flatnonzero(expected(output[:end])).tolist()
        wrong = [*path, int(rng.integers(VOCAB))]
        if not expected(output[:end])[wrong[-1]]:
            assert one.allowed(wrong) is None
            assert not one.allows(wrong)


def test_an_output_ends_where_its_text_is_whole() -> None:
    one = matcher(WORD)
    assert STOP not in allowed(one)
    assert STOP in allowed(one, ids("a"))
    assert one.allows([*ids("a"), STOP])
    assert one.allowed([*ids("a"), STOP]) is None
    assert not one.allows([*ids("a"), STOP, STOP])
    assert not one.allows([STOP])


@pytest.mark.parametrize("fields", [{"min_tokens": 3}, {"ignore_eos": True}])
def test_an_output_that_may_not_end_yet_goes_on_where_it_can(fields: dict[str, object]) -> None:
    assert STOP not in allowed(matcher(WORD, **fields), ids("ab"))
    only = OutputGrammar("choice", '["ab"]')
    assert allowed(matcher(only, **fields), ids("ab")) == [STOP]
    assert STOP in allowed(matcher(WORD, min_tokens=3), ids("abb"))


def test_where_a_grammar_allows_nothing_the_request_fails() -> None:
    dead_end = OutputGrammar("grammar", 'root ::= "a" never\nnever ::= never "b"')
    with pytest.raises(GrammarStuck, match="NoExtension"):
        matcher(dead_end).allowed(ids("a"))


def test_forced_tokens_are_those_that_alone_are_allowed() -> None:
    """By the definition, along a random output, and no further than asked for."""
    rng = np.random.default_rng(2)
    compiled, expected = grammars().compile(NESTED).result(), allowed_by(params(NESTED))
    one, found = matcher(NESTED), 0
    output = next(filter(None, (random_output(compiled, rng) for _ in range(20))))
    for end in range(len(output) + 1):
        one.follow(output[:end])
        forced = one.forced((), 3)
        path = list(output[:end])
        for token in forced:
            assert np.flatnonzero(expected(path)).tolist() == [token]
            path.append(token)
        if len(forced) < 3 and path[-1:] != [STOP]:
            assert np.count_nonzero(expected(path)) > 1
        found += len(forced)
    assert found
    assert matcher(OutputGrammar("choice", '["ab"]')).forced(ids("ab"), 5) == [STOP]
    assert one.forced([*output, STOP], 5) == []


def test_committed_tokens_that_are_not_of_the_grammar_are_an_error() -> None:
    with pytest.raises(GrammarViolated, match="output token 1"):
        matcher(WORD).follow(ids("ax"))


def test_masks_are_applied_alike_on_any_device() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(-(2**31), 2**31, (2, 4)).astype(np.int32)
    logits, rows = torch.randn(3, 100), np.array([2, 0])
    ours, torchs = logits.clone(), logits.clone()
    allow_only(ours.numpy(), rows, words)
    allow_only_torch(torchs, rows, words)
    assert torch.equal(ours, torchs)
    for place, row in enumerate(rows):
        kept = [token for token in tokens_of(words[place]).tolist() if token < 100]
        assert torch.isfinite(ours[row]).nonzero().flatten().tolist() == kept
        assert torch.equal(ours[row, kept], logits[row, kept])
    assert torch.equal(ours[1], logits[1])


def held(grammar: OutputGrammar | None, output: Sequence[int] = ()) -> HeldRequest:
    committed = CommittedTokens()
    committed.extend([7, *output])
    own = SamplingParams() if grammar is None else params(grammar)
    return HeldRequest(Start(own, 0, 1), committed)


def order(name: str) -> VerifyOrder:
    return VerifyOrder(Prefix(name, 0, 0, 0, 0, ()), DraftTree.empty(), 1)


def test_no_request_waits_for_anothers_grammar_to_compile() -> None:
    own = Grammars(grammars()._checkpoint, VOCAB)
    own.load_ahead().result()
    gate = GrammarGate(own)
    release = threading.Event()
    blocker = own._thread.submit(release.wait, 30)
    orders = [order("structured"), order("plain")]
    waiting, plain = gate.pass_ready(orders, [held(WORD), held(None)])
    assert isinstance(waiting, Verdict)
    assert (waiting.tokens, waiting.pending) == ((), 1)
    assert isinstance(plain, Ready)
    release.set()
    blocker.result()
    # With nothing else to do, it is waited for.
    (ready,) = gate.pass_ready(orders[:1], [held(WORD)])
    assert isinstance(ready, Ready)
    assert ready.matcher is not None


def test_more_grammars_than_are_kept_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a request without one, for which the host has something to do."""
    monkeypatch.setattr(compiler, "MAX_COMPILED", 1)
    gate = GrammarGate(Grammars(grammars()._checkpoint, VOCAB))
    words = [OutputGrammar("regex", f"a{sign}*") for sign in "bcd"]
    orders = [order(name) for name in ("plain", "b", "c", "d")]
    states = [held(None), *map(held, words)]
    for _ in range(100):
        if all(isinstance(one, Ready) for one in gate.pass_ready(orders, states)):
            return
        time.sleep(0.1)
    pytest.fail("they compile again and again")


def test_a_grammar_that_cannot_be_followed_fails_its_request_alone() -> None:
    gate = GrammarGate(grammars())
    bad = OutputGrammar("regex", "(")
    for one in (bad, WORD):
        grammars().compile(one).exception()
    orders = [order("bad"), order("good"), order("violated")]
    failed, ready, violated = gate.pass_ready(orders, [held(bad), held(WORD), held(WORD, [9])])
    assert isinstance(failed, Failed)
    assert isinstance(ready, Ready)
    assert isinstance(violated, Failed)


def test_special_tokens_of_drafts_are_refused() -> None:
    one = matcher(WORD)
    one.follow(ids("ab"))
    for token in range(4):
        assert not one.allows([token])
        assert not one.allows([*ids("b"), token])
    assert one.allows(ids("bb"))


def test_an_output_with_ever_more_readings_ends_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matcher_module, "MOST_S", 0.05)
    monkeypatch.setattr(matcher_module, "MOST_PER_TOKEN_S", 1e-4)
    ambiguous = OutputGrammar("grammar", 'root ::= root root | "a" | "b"')
    one = matcher(ambiguous)

    def write(tokens: int) -> None:
        for length in range(tokens):
            one.follow(ids("a") * length)
            one.allowed()

    with pytest.raises(GrammarStuck):
        write(600)
    for _ in range(2):
        with pytest.raises(GrammarStuck):
            one.follow(ids("a") * 600)
    gate = GrammarGate(grammars())
    orders = [order("slow"), order("good")]
    slow, good = gate.pass_ready(orders, [held(ambiguous, ids("a") * 600), held(WORD, ids("ab"))])
    assert isinstance(slow, Failed)
    assert isinstance(good, Ready)
