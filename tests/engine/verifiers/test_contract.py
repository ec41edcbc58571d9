"""The verifier protocol that every backend keeps, on the zoo's target with chains."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import pytest
import torch

from actors.hosts.isolation import isolated
from engine.grammar import gate
from engine.grammar.spec import OutputGrammar
from engine.protocol import Failed, Missing, NoRoom, TokenLogprobs, Verdict, VerifyOrder
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Row, choose
from engine.scopes import SHARED, Scope
from policies.tree import DraftTree
from tests import prompt_logprobs, reference
from tests.engine.streams import END, questions, reference_target
from tests.engine.verifiers.backends import AMPLE, TIGHT, Backend, Host, host
from tests.engine.verifiers.orders import SEED, order, verdict

GREEDY = SamplingParams(temperature=0, max_tokens=24)
RANDOM = SamplingParams(
    temperature=0.9, top_p=0.95, min_p=0.01, frequency_penalty=0.5, logit_bias={9: 2.0},
    max_tokens=24,
)  # fmt: skip


@pytest.fixture(params=["native", "vllm"])
def ample(request: pytest.FixtureRequest) -> Iterator[Host]:
    yield from served_by(request.param, AMPLE)


@pytest.fixture(params=["native", "vllm"])
def tight(request: pytest.FixtureRequest) -> Iterator[Host]:
    yield from served_by(request.param, TIGHT)


def served_by(backend: Backend, kv_tokens: int) -> Iterator[Host]:
    one = host(backend, kv_tokens)
    yield one
    one.verifier.forget(["a", "b", "c", "never seen"])
    assert one.used_blocks() == 0, "a forgotten request still holds KV"


def reference_output(prompt: Sequence[int], params: SamplingParams) -> list[int]:
    return reference.generate(reference_target(), list(prompt), params, SEED)


@pytest.mark.parametrize("params", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_a_draft_is_accepted_exactly_as_far_as_it_equals_the_targets_tokens(
    ample: Host, params: SamplingParams
) -> None:
    """Right, partly right, empty and wrong drafts of different lengths, two to a batch."""
    prompts = {"a": questions(False)[0], "b": questions(False)[4]}
    expected = {name: reference_output(prompt, params) for name, prompt in prompts.items()}
    streams: dict[str, list[int]] = {name: [] for name in prompts}
    known = dict.fromkeys(prompts, 0)
    right = {"a": (11, 0, 3), "b": (0, 2, 1)}
    for step in range(4):
        batch = []
        good = dict.fromkeys(prompts, 0)
        for name, prompt in prompts.items():
            rest = expected[name][len(streams[name]) :]
            draft: list[int] = []
            if step:
                good[name] = min(right[name][step - 1], len(rest))
                wrong = 0 if len(rest) <= good[name] else (rest[good[name]] + 1) % 2048
                draft = [*rest[: good[name]], wrong, 5]
            tokens = [*prompt, *streams[name]]
            batch.append(
                order(
                    name, tokens, DraftTree.chain(draft), params=params, base=known[name],
                    prompt_len=len(prompt),
                )
            )  # fmt: skip
        for one, answer in zip(batch, ample.verifier.verify(batch), strict=True):
            assert isinstance(answer, Verdict)
            name = one.prefix.request
            before = len(streams[name])
            streams[name].extend(answer.tokens)
            assert streams[name][: len(expected[name])] == expected[name][: len(streams[name])]
            if before + good[name] < len(expected[name]):
                assert answer.accepted == tuple(range(good[name]))
                assert len(answer.tokens) == good[name] + 1
            known[name] = len(prompts[name]) + len(streams[name])


def test_a_prompt_is_found_in_the_cache_of_its_own_scope_alone(ample: Host) -> None:
    prompt, scopes = range(400, 470), [SHARED, Scope("a"), Scope("b"), Scope("a", "salt")]
    ample.verifier.score([1, *prompt, 2], [3])  # one of the system's own prompts
    for scope in scopes:
        fresh = verdict(ample.verifier, order("a", [1, *prompt], scope=scope))
        ample.verifier.forget(["a"])
        again = verdict(ample.verifier, order("a", [1, *prompt], scope=scope))
        ample.verifier.forget(["a"])
        assert fresh.cached == 0
        assert again.cached
        assert again.tokens == fresh.tokens
    tokens = [1, *prompt, *again.tokens]
    verdict(ample.verifier, order("a", tokens[:-1]))
    following = order("a", tokens, base=len(tokens), prompt_len=len(tokens) - 1)
    assert verdict(ample.verifier, following).cached is None, "only of a new request"


def test_a_chunked_prompt_is_pending_until_its_last_chunk(ample: Host) -> None:
    prompt = questions(False)[0][:8]
    whole = verdict(ample.verifier, order("a", prompt))
    ample.verifier.forget(["a"])
    tree = DraftTree.chain([*whole.tokens])
    # Another first token, so that the prompt is not in the prefix cache.
    prompt = [prompt[0] + 1, *prompt[1:]]
    answers = [verdict(ample.verifier, order("b", prompt, tree, chunk=3))]
    while answers[-1].pending:
        one = order("b", prompt, tree, base=len(prompt), chunk=3)
        answers.append(verdict(ample.verifier, one))
    assert [answer.pending for answer in answers] == [5, 2, 0]
    assert [len(answer.tokens) > 0 for answer in answers] == [False, False, True]
    assert (
        answers[-1].tokens[0]
        == reference_output(prompt, SamplingParams(temperature=0, max_tokens=1))[0]
    )


def test_what_a_grammar_forces_needs_no_draft_and_changes_nothing(
    ample: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first sign everything is forced, the stop token included."""
    grammar = OutputGrammar("choice", '["xqj", "wqj"]')
    params = SamplingParams(temperature=0, max_tokens=8, stop_token_ids=(END,), grammar=grammar)
    prompt = questions(False)[0]

    def run(name: str) -> tuple[list[int], int]:
        output: list[int] = []
        for rounds in range(1, 9):
            tokens = [*prompt, *output]
            base = len(tokens) if output else 0
            one = order(name, tokens, params=params, base=base, prompt_len=len(prompt))
            answer = verdict(ample.verifier, one)
            assert answer.accepted == (), "nothing was drafted"
            output.extend(answer.tokens)
            if END in output:
                return output[: output.index(END) + 1], rounds
        raise AssertionError(output)

    output, rounds = run("a")
    monkeypatch.setattr(gate, "MAX_FORCED", 0)
    unforced, tokens = run("b")
    assert output == unforced
    assert rounds < tokens == len(output)


def test_drafts_fail_no_request_whose_grammar_is_slow(
    ample: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mask takes time, of which an output may take only so much."""
    clock = count(0.0, 0.004)
    monkeypatch.setattr("engine.grammar.matcher.thread_time", lambda: next(clock))
    grammar = OutputGrammar("regex", "[a-z ]*")
    params = SamplingParams(temperature=0, max_tokens=99, stop_token_ids=(END,), grammar=grammar)
    prompt = questions(False)[0]

    def run(name: str, tree: DraftTree) -> list[int]:
        output: list[int] = []
        while len(output) < 40 and END not in output:
            tokens = [*prompt, *output]
            base = len(tokens) if output else 0
            one = order(name, tokens, tree, params=params, base=base, prompt_len=len(prompt))
            output.extend(verdict(ample.verifier, one).tokens)
        return output[:40]

    letters = DraftTree.chain([ord(sign) - ord("!") + 5 for sign in "zqxjvkwz"])
    assert run("a", letters) == run("b", DraftTree.empty())


def test_each_order_has_its_own_chunk_size(ample: Host) -> None:
    first, second = questions(False)[0], questions(False)[5]
    answers = ample.verifier.verify([order("a", first, chunk=2), order("b", second, chunk=5)])
    pending = [answer.pending for answer in answers if isinstance(answer, Verdict)]
    assert pending == [len(first) - 2, len(second) - 5]


def test_a_request_that_cannot_be_sampled_fails_alone(
    ample: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        if any(row.params == RANDOM for row in rows):
            raise RuntimeError("defect")
        return choose(logits, rows)

    monkeypatch.setattr("engine.verifiers.native.choose", poisoned)
    monkeypatch.setattr("engine.verifiers.vllm.sampling.choose", poisoned)
    verifier = ample.verifier

    def answered(orders: Sequence[VerifyOrder]) -> list[Verdict | Missing | NoRoom | Failed]:
        return isolated(verifier, verifier.verify, orders, probe=lambda: None)

    prompts = dict(zip("abc", questions(False), strict=False))
    streams: dict[str, list[int]] = {"a": [], "c": []}
    # Where they have tokens already, and where one has the KV of a prompt and no token yet.
    for with_poison in (True, False, True):
        orders = [
            order(name, [*prompts[name], *streams[name]], prompt_len=len(prompts[name]))
            for name in streams
        ]
        poison = order("b", prompts["b"], DraftTree.chain([5, 6]), params=RANDOM)
        answers = answered([orders[0], *([poison] if with_poison else []), orders[1]])
        if with_poison:
            assert answers.pop(1) == Failed("b", 0, 0)
        for name, answer in zip(streams, answers, strict=True):
            assert isinstance(answer, Verdict)
            streams[name] += answer.tokens
    for name, stream in streams.items():
        assert stream == reference_output(prompts[name], replace(GREEDY, max_tokens=3))


def test_an_unknown_prefix_is_missing_and_the_other_orders_are_verified(ample: Host) -> None:
    tokens = [100, 200, 300, 400]
    unknown = order("b", tokens, base=2)
    answers = ample.verifier.verify([unknown, order("a", tokens)])
    assert answers[0] == Missing("b", 0, 0, have=0)
    assert isinstance(answers[1], Verdict)
    other_history = order("a", [400, 300, 200, 100, 0], base=4)
    assert ample.verifier.verify([other_history]) == [Missing("a", 0, 0, have=0)]
    assert verdict(ample.verifier, order("a", tokens)).tokens == answers[1].tokens


def test_a_forgotten_request_continues_from_its_committed_tokens(ample: Host) -> None:
    """After a restart committed outputs still count as output for positions and penalties."""
    prompt = questions(False)[1]
    expected = reference_output(prompt, RANDOM)
    first = verdict(ample.verifier, order("a", prompt, params=RANDOM))
    committed = [*prompt, *expected[:9]]
    assert first.tokens == tuple(expected[:1])
    ample.verifier.forget(["a"])
    delta = order("a", committed, params=RANDOM, base=len(prompt) + 1)
    assert ample.verifier.verify([delta]) == [Missing("a", 0, 0, have=0)]
    whole = order("a", committed, params=RANDOM, prompt_len=len(prompt))
    again = verdict(ample.verifier, whole)
    assert again.tokens == tuple(expected[9:10])


def test_committed_tokens_other_than_the_verdicts_replace_them(ample: Host) -> None:
    prompt = questions(False)[2]
    verdict(ample.verifier, order("a", prompt))
    committed = [*prompt, 77, 88]
    rolled_back = order("a", committed, base=len(prompt), prompt_len=len(prompt))
    after = verdict(ample.verifier, rolled_back)
    assert list(after.tokens) == reference_output(
        committed, SamplingParams(temperature=0, max_tokens=1)
    )


def test_a_full_pool_refuses_the_requests_that_do_not_fit(tight: Host) -> None:
    prompts = [[token] * 120 for token in (20, 30, 40)]
    orders = [order(name, prompt) for name, prompt in zip("abc", prompts, strict=True)]
    answers = tight.verifier.verify(orders)
    assert [type(answer) for answer in answers] == [Verdict, Verdict, NoRoom]
    tight.verifier.forget(["a"])
    assert verdict(tight.verifier, orders[2]).tokens


def test_an_idle_request_is_evicted_and_continues_later(tight: Host) -> None:
    prompts = {
        name: [token, *([token + 1] * 150)] for name, token in zip("abc", (50, 60, 70), strict=True)
    }
    streams = {name: list(prompt) for name, prompt in prompts.items()}
    known = dict.fromkeys(prompts, 0)
    for _ in range(3):
        for name, prompt in prompts.items():  # one per batch; the pool holds two of three
            while len(streams[name]) == known[name] or not known[name]:
                one = order(name, streams[name], base=known[name], prompt_len=len(prompt))
                (answer,) = tight.verifier.verify([one])
                if isinstance(answer, Missing):
                    known[name] = answer.have
                    continue
                assert isinstance(answer, Verdict)
                known[name] = len(streams[name]) + len(answer.tokens)
                streams[name].extend(answer.tokens)
                if answer.tokens:
                    break
    for name, prompt in prompts.items():
        expected = reference_output(prompt, SamplingParams(temperature=0, max_tokens=3))
        assert streams[name] == [*prompt, *expected]


def test_logprobs_equal_the_stock_models_along_the_accepted_path(ample: Host) -> None:
    params = SamplingParams(temperature=0.8, logprobs=2, max_tokens=4)
    without = SamplingParams(temperature=0, max_tokens=4)
    prompt = questions(False)[3]
    expected = reference_output(prompt, params)
    first = verdict(ample.verifier, order("a", prompt, params=params))
    assert first.logprobs is not None
    assert len(first.logprobs) == 1
    committed = [*prompt, *expected[:1]]
    draft = DraftTree.chain([*expected[1:3], 0])
    orders = [
        order("a", committed, draft, params=params, base=len(committed), prompt_len=len(prompt)),
        order("b", prompt, params=without),
    ]
    answer, beside = ample.verifier.verify(orders)
    assert isinstance(answer, Verdict)
    assert isinstance(beside, Verdict)
    assert beside.logprobs is None
    assert answer.tokens == tuple(expected[1:4])
    assert answer.logprobs is not None
    whole = [*prompt, *expected]
    prompt_logprobs.check(reference_target(), whole, 2, answer.logprobs, first=len(prompt) + 1)


@pytest.mark.parametrize("mishap", ["none", "forgotten", "verdict lost"])
def test_prompt_logprobs_equal_the_stock_models_and_come_once(ample: Host, mishap: str) -> None:
    """For a prompt in the prefix cache, in chunks, beside a request that decodes."""
    prompt = questions(True)[0]
    plain = SamplingParams(temperature=0, max_tokens=20)
    streams = {"a": [*prompt, *verdict(ample.verifier, order("a", prompt)).tokens]}
    params = replace(plain, prompt_logprobs=2)
    reported: list[TokenLogprobs] = []
    known = 0
    tokens: tuple[int, ...] = ()
    for step in range(len(prompt)):
        asked = order("b", prompt, params=params, base=known, chunk=7)
        beside = order("a", streams["a"], base=len(streams["a"]), prompt_len=len(prompt))
        asked = asked._replace(prompt_logprobs_from=1 + len(reported))
        answer, other = ample.verifier.verify([asked, beside])
        assert isinstance(answer, Verdict)
        assert isinstance(other, Verdict)
        assert not other.prompt_logprobs
        streams["a"] += other.tokens
        known = len(prompt)
        if step == 2 and mishap == "verdict lost":
            known = 0  # the verdict is not used, so the order is sent again
            continue
        reported += answer.prompt_logprobs
        if step == 2 and mishap == "forgotten":
            ample.verifier.forget(["b"])
            known = 0
        tokens = answer.tokens
        if tokens:
            break
    prompt_logprobs.check(reference_target(), prompt, 2, reported)
    assert list(tokens) == reference_output(prompt, replace(plain, max_tokens=1))
    decoded = streams["a"][len(prompt) :]
    assert decoded == reference_output(prompt, plain)[: len(decoded)]


def test_a_prompt_evicted_in_mid_prefill_gets_all_its_logprobs(tight: Host) -> None:
    params = SamplingParams(temperature=0, prompt_logprobs=1)
    prompt = [50, *([51, 52] * 75)]
    reported: list[TokenLogprobs] = []
    known = 0
    for step in range(6):
        asked = order("b", prompt, params=params, base=known, chunk=100)
        (answer,) = tight.verifier.verify([asked._replace(prompt_logprobs_from=1 + len(reported))])
        if isinstance(answer, Missing):
            known = answer.have
            continue
        assert isinstance(answer, Verdict)
        reported += answer.prompt_logprobs
        known = len(prompt)
        if answer.tokens:
            break
        if step == 0:
            for name, token in (("a", 60), ("c", 70)):  # the pool holds two of three
                assert verdict(tight.verifier, order(name, [token] * 151)).tokens
    prompt_logprobs.check(reference_target(), prompt, 1, reported)


def test_a_prompt_of_one_token_has_no_logprobs(ample: Host) -> None:
    params = SamplingParams(temperature=0, prompt_logprobs=0)
    one = order("a", [100], params=params)._replace(prompt_logprobs_from=1)
    answer = verdict(ample.verifier, one)
    assert answer.tokens
    assert answer.prompt_logprobs == ()


def test_scores_equal_the_stock_models_and_hold_no_kv(ample: Host) -> None:
    prompt = (questions(True)[0] * 30)[:1100]  # several chunks
    expected = reference.forward(reference_target(), prompt)[-1, [4, 0, 9]]
    for _ in range(2):  # the second time from the prefix cache
        assert ample.verifier.score(prompt, [4, 0, 9]) == pytest.approx(expected, abs=1e-3)
    assert ample.used_blocks() == 0


def test_a_request_may_fill_the_whole_context(tight: Host) -> None:
    """Up to the last token, with drafts that reach beyond it."""
    length = tight.verifier.max_context
    prompt = [20 + token % 7 for token in range(length - 12)]
    params = SamplingParams(temperature=0, max_tokens=12)
    expected = reference_output(prompt, params)
    tokens, known = list(prompt), 0
    while len(tokens) < length:
        left = length - len(tokens)
        draft = DraftTree.chain([*expected[-left:][:4], 5, 5][: left - 1] if known else [])
        one: VerifyOrder = order("a", tokens, draft, base=known, prompt_len=len(prompt))
        answer = verdict(tight.verifier, one)
        tokens.extend(answer.tokens)
        known = len(tokens)
    assert tokens == [*prompt, *expected]
