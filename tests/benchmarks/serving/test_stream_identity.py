"""Streams are compared token by token, and the scores at a difference are the oracle's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from benchmarks.serving.stream_identity import StreamIdentity
from benchmarks.serving.streams import ReceivedStream
from cluster.built_in_models import TARGET, model_path
from engine.sampling.params import SamplingParams
from tests import reference

PROMPT = [5, 70, 900, 31, 8]


@pytest.fixture(scope="module")
def identity() -> StreamIdentity:
    return StreamIdentity()


def body(temperature: float = 0.0, frequency_penalty: float = 0.0) -> dict[str, Any]:
    return {
        "prompt": PROMPT,
        "temperature": temperature,
        "frequency_penalty": frequency_penalty,
        "seed": 7,
    }


@pytest.mark.parametrize(("temperature", "frequency_penalty"), [(0.0, 0.5), (1.0, 0.0), (0.8, 0.5)])
def test_scores_equal_those_of_the_independent_oracle(
    identity: StreamIdentity, temperature: float, frequency_penalty: float
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path(TARGET), attn_implementation="eager")
    output = [12, 40, 12]
    tokens = [*PROMPT, *output]
    params = SamplingParams(temperature, frequency_penalty=frequency_penalty)
    logits = reference.forward(model.float().eval(), tokens)[-1]
    expected = reference.perturbed(logits, tokens, len(PROMPT), params, seed=7)
    scores = identity.scores(body(temperature, frequency_penalty), output)
    assert np.allclose(scores, expected, rtol=0, atol=1e-9)


def finished(token_ids: Sequence[int]) -> ReceivedStream:
    return ReceivedStream(text="x", token_ids=list(token_ids), finish="length")


def test_only_complete_streams_with_the_same_tokens_are_identical(identity: StreamIdentity) -> None:
    best = int(identity.scores(body(), []).argmax())
    undisturbed = finished([best, 5])
    assert identity(body(), undisturbed, finished([best, 5])) is False
    assert identity(body(), undisturbed, replace(undisturbed, finish=None)) is None
    assert identity(body(), undisturbed, replace(undisturbed, error="lost")) is None
    assert identity(body(), undisturbed, finished([best + 1, 5])) is None
    assert identity(body(), undisturbed, finished([best])) is None


def test_a_difference_at_a_near_tie_is_excused(
    identity: StreamIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "scores", lambda *_: np.array([1.0, 3.0, 3.0 - 1e-5]))
    assert identity(body(), finished([1]), finished([2])) is True
