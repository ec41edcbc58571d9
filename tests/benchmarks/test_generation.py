"""generate() and Generation: commits, errors and preemption (tokens: test_identity.py)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.generation import Generation, Rejected, generate
from engine.drafters.model import ModelDrafter
from engine.drafters.runner import PackedRunner
from engine.errors import InvalidRequest
from engine.model import PackedModel
from engine.protocol import Commit
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from tests import reference
from tests.checkpoints import VOCAB, eager_llama, llama

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


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


def test_a_stop_token_inside_an_accepted_draft_ends_the_stream() -> None:
    """As does max_tokens: no token beyond either is committed."""
    model = llama()
    itself = ModelDrafter(
        "itself", PackedRunner(PackedModel(llama(), kv_tokens=512)), target_vocab_size=VOCAB
    )
    verifier = NativeVerifier(PackedModel(model, kv_tokens=512))
    full = reference.generate(eager_llama(), [5, 6, 7], GREEDY, 0)
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
