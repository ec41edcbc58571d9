"""generate() and its session: what a caller sees besides the tokens (test_identity has those)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from engine.drafters.model import ModelDrafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.runner import PackedRunner
from engine.errors import InvalidRequest
from engine.generate import DraftPlan, Generation, Rejected, generate
from engine.model import PackedModel
from engine.protocol import Commit
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests import prompt_logprobs, reference
from tests.checkpoints import VOCAB, blurred, llama

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def reference_model() -> PreTrainedModel:
    model = llama()
    model.set_attn_implementation("eager")
    return model


def make_verifier(kv_tokens: int = 1024) -> NativeVerifier:
    return NativeVerifier(PackedModel(llama(), kv_tokens=kv_tokens))


def streams(events: Sequence[Commit | Rejected]) -> dict[str, list[int]]:
    joined: dict[str, list[int]] = {}
    for event in events:
        assert isinstance(event, Commit)
        stream = joined.setdefault(event.request, [])
        assert event.first_index == len(stream)
        stream.extend(event.token_ids)
    return joined


def test_a_prompt_of_numpy_integers_is_the_same_prompt() -> None:
    prompt = [5, 6, 7]
    whole = list(generate(make_verifier(), [prompt, list(np.array(prompt))], GREEDY))
    said = streams(whole)
    assert said["0"] == said["1"]


@pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, temperature=1.0, seed=3)])
def test_without_a_drafter_it_says_what_the_reference_says(
    params: SamplingParams, reference_model: PreTrainedModel
) -> None:
    prompts = [[5, 6, 7], [9] * 30, [3]]
    said = streams(list(generate(make_verifier(), prompts, params)))
    assert said == {
        str(index): reference.generate(reference_model, prompt, params, params.seed or 0)
        for index, prompt in enumerate(prompts)
    }


BAD: list[tuple[str, list[int], dict[str, Any]]] = [
    ("prompt", [], {}),
    ("prompt", [5, VOCAB], {}),
    ("prompt", [5, -1], {}),
    ("prompt", [5] * 256, {}),
    ("max_tokens", [5] * 250, {"max_tokens": 12}),
    ("max_tokens", [5], {"max_tokens": 0}),
    ("temperature", [5], {"temperature": -0.1}),
    ("temperature", [5], {"temperature": float("nan")}),
    ("top_p", [5], {"top_p": 0.0}),
    ("top_p", [5], {"top_p": 1.1}),
    ("stop_token_ids", [5], {"stop_token_ids": (VOCAB,)}),
    ("seed", [5], {"seed": 2**64}),
]


@pytest.mark.parametrize(("field", "prompt", "changes"), BAD)
def test_a_bad_request_is_refused_by_field_and_the_others_go_on(
    field: str, prompt: list[int], changes: dict[str, Any]
) -> None:
    good = [[5, 6, 7], [8, 9]]
    alone = streams(list(generate(make_verifier(), good, GREEDY)))
    events = list(
        generate(
            make_verifier(),
            [good[0], prompt, good[1]],
            [GREEDY, replace(GREEDY, **changes), GREEDY],
        )
    )
    (rejected,) = [event for event in events if isinstance(event, Rejected)]
    assert (rejected.request, rejected.error.field) == ("1", field)
    assert str(rejected.error).startswith(field)
    said = streams([event for event in events if isinstance(event, Commit)])
    assert said == {"0": alone["0"], "2": alone["1"]}


def test_a_request_that_can_never_fit_the_pool_is_told_how_much_may() -> None:
    session = Generation(make_verifier(kv_tokens=64))
    with pytest.raises(InvalidRequest, match="ask for at most 14") as refused:
        session.add("big", [5] * 50, replace(GREEDY, max_tokens=15))
    assert refused.value.field == "max_tokens"
    session.add("just", [5] * 50, replace(GREEDY, max_tokens=14))
    commits = []
    while session.active:
        commits += session.step()
    assert sum(len(commit.token_ids) for commit in commits) == 14


def test_a_name_in_use_is_refused() -> None:
    session = Generation(make_verifier())
    session.add("one", [5], GREEDY)
    with pytest.raises(InvalidRequest, match="already being served"):
        session.add("one", [6], GREEDY)


def test_a_stop_token_inside_an_accepted_draft_ends_the_stream(
    reference_model: PreTrainedModel,
) -> None:
    """And max_tokens as well: nothing beyond them is given out."""
    model = llama()
    itself = ModelDrafter(
        "itself", PackedRunner(PackedModel(llama(), kv_tokens=512)), target_vocab_size=VOCAB
    )
    verifier = NativeVerifier(PackedModel(model, kv_tokens=512))
    full = reference.generate(reference_model, [5, 6, 7], GREEDY, 0)
    stop = full[6]
    end = full.index(stop) + 1
    events = list(
        generate(
            verifier,
            [[5, 6, 7]] * 2,
            [replace(GREEDY, stop_token_ids=(stop,)), replace(GREEDY, max_tokens=4)],
            drafter=itself,
            depth=8,
        )
    )
    assert streams(events) == {"0": full[:end], "1": full[:4]}
    finish = {e.request: e.finish for e in events if isinstance(e, Commit) and e.finish}
    assert finish == {"0": "stop", "1": "length"}


def test_the_models_own_stop_token_counts_unless_it_is_ignored(
    reference_model: PreTrainedModel,
) -> None:
    """The tiny model's own is token 1; a bias makes it say it soon."""
    params = replace(GREEDY, ignore_eos=False, logit_bias={1: 100.0})
    said = streams(list(generate(make_verifier(), [[5]], params)))
    assert said == {"0": [1]}
    ignoring = streams(list(generate(make_verifier(), [[5]], replace(params, ignore_eos=True))))
    assert ignoring == {"0": [1] * 12}


def test_a_missing_seed_is_drawn_anew_for_each_request() -> None:
    params = replace(GREEDY, temperature=1.0, max_tokens=24)
    said = streams(list(generate(make_verifier(), [[5]] * 4, params)))
    assert len({tuple(stream) for stream in said.values()}) == 4


def test_commits_come_one_per_verdict_while_others_still_run() -> None:
    """A drafter that always agrees gives several tokens at once; readers need not wait."""
    drafter = ModelDrafter(
        "itself", PackedRunner(PackedModel(llama(), kv_tokens=512)), target_vocab_size=VOCAB
    )
    first = next(iter(generate(make_verifier(), [[5]], GREEDY, drafter=drafter)))
    assert isinstance(first, Commit)
    assert first.finish is None
    commits = list(generate(make_verifier(), [[5]], GREEDY, drafter=drafter, depth=3))
    assert [len(c.token_ids) for c in commits if isinstance(c, Commit)] == [1, 4, 4, 3]


def test_when_the_pool_is_too_small_for_all_the_youngest_wait_and_all_finish() -> None:
    drafter = ModelDrafter(
        "blurred",
        PackedRunner(PackedModel(blurred(llama(), 0.1), kv_tokens=512)),
        target_vocab_size=VOCAB,
    )
    params = replace(GREEDY, max_tokens=40)
    prompts = [[5 + index] * 20 for index in range(5)]
    wide = streams(list(generate(make_verifier(), prompts, params)))
    events = list(generate(make_verifier(kv_tokens=96), prompts, params, drafter=drafter))
    assert streams(events) == wide
    finished = [e.request for e in events if isinstance(e, Commit) and e.finish]
    assert finished == sorted(finished), "nobody overtakes in a pool that holds one"


def test_prompt_logprobs_come_whole_with_the_first_commit(
    reference_model: PreTrainedModel,
) -> None:
    """Of equal prompts in pieces, in a pool in which requests are preempted."""
    prompts = [[token % VOCAB for token in range(3, 48)]] * 3 + [[5]]
    asking = replace(GREEDY, prompt_logprobs=3)
    params = [GREEDY, asking, asking, asking]
    events = list(generate(make_verifier(kv_tokens=144), prompts, params, chunk=7))
    plain = list(generate(make_verifier(), prompts, GREEDY))
    assert streams(events) == streams(plain), "asking changes nothing"
    for commit in events:
        assert isinstance(commit, Commit)
        number = int(commit.request)
        if number and commit.first_index == 0:
            told = commit.prompt_logprobs
            prompt_logprobs.check(reference_model, prompts[number], 3, told)
        else:
            assert commit.prompt_logprobs is None


def test_a_cancelled_request_says_nothing_more_and_frees_its_memory() -> None:
    model = PackedModel(llama(), kv_tokens=512)
    session = Generation(
        NativeVerifier(model), [NgramDrafter()], lambda _request, _round: DraftPlan("ngram")
    )
    for name in ("stays", "goes", "waits"):
        session.add(name, [5, 6, 5, 6, 5], GREEDY)
    session.step()
    session.cancel("goes")
    session.cancel("never there")
    later = []
    while session.active:
        later += session.step()
    assert {commit.request for commit in later} == {"stays", "waits"}
    assert model.kv.used_blocks == 0
