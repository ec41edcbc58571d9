"""generate() and Generation: commits, errors and preemption (tokens: test_identity.py)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedModel

from benchmarks.generation import Generation, Rejected, generate
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import PackedRunner
from engine.errors import InvalidRequest
from engine.model import PackedModel
from engine.protocol import Commit
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests import reference
from tests.checkpoints import VOCAB, llama

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


@pytest.mark.parametrize(
    ("field", "prompt", "changes"),
    [("prompt", [5, VOCAB], {}), ("temperature", [5], {"temperature": -0.1})],
)
def test_an_invalid_request_is_rejected_by_field_and_the_others_are_served(
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
    outputs = streams([event for event in events if isinstance(event, Commit)])
    assert outputs == {"0": alone["0"], "2": alone["1"]}


def test_a_request_larger_than_the_pool_is_refused_with_the_possible_max_tokens() -> None:
    session = Generation(make_verifier(kv_tokens=64))
    with pytest.raises(InvalidRequest, match="ask for at most 14") as refused:
        session.add("big", [5] * 50, replace(GREEDY, max_tokens=15))
    assert refused.value.field == "max_tokens"
    session.add("just", [5] * 50, replace(GREEDY, max_tokens=14))
    commits = []
    while session.active:
        commits += session.step()
    assert sum(len(commit.token_ids) for commit in commits) == 14


def test_a_stop_token_inside_an_accepted_draft_ends_the_stream(
    reference_model: PreTrainedModel,
) -> None:
    """As does max_tokens: no token beyond either is committed."""
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


def test_the_models_own_stop_token_ends_an_output_unless_it_is_ignored(
    reference_model: PreTrainedModel,
) -> None:
    """The tiny model's stop token is 1, which the bias makes it choose at once."""
    params = replace(GREEDY, ignore_eos=False, logit_bias={1: 100.0})
    outputs = streams(list(generate(make_verifier(), [[5]], params)))
    assert outputs == {"0": [1]}
    ignoring = streams(list(generate(make_verifier(), [[5]], replace(params, ignore_eos=True))))
    assert ignoring == {"0": [1] * 12}
