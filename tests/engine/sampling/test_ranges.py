"""Whatever number a request gives, it is refused by the name of its field, or served as the
reference serves it."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoTokenizer

from benchmarks.generation import Rejected, generate
from cluster.built_in_models import TARGET, model_path
from deployments.ingress.errors import ApiError
from deployments.ingress.requests.completions import CompletionRequest
from deployments.ingress.requests.stream_requests import sampling_params
from engine.drafters.lookup import NgramDrafter
from engine.errors import InvalidRequest
from engine.model import PackedModel
from engine.sampling.params import SamplingParams
from engine.verifiers.native import NativeVerifier
from policies.ranges import BIAS, SAMPLING_INTEGERS, SAMPLING_REALS, Range
from tests.engine.streams import reference_target
from tests.identity import Identity

NUMBERS = {**SAMPLING_INTEGERS, **SAMPLING_REALS}
HOSTILE = (2**31, 2**63 - 1, 2**63, 2**64, 10**30, 1e308, math.nan, math.inf, 1e-300, 5e-324, 1e-45)
PLAIN = SamplingParams(max_tokens=3, seed=5)


@cache
def verifier() -> NativeVerifier:
    torch.set_num_threads(1)
    model = PackedModel.load(model_path(TARGET), dtype=torch.float32, device="cpu", kv_tokens=4096)
    return NativeVerifier(model)


@cache
def prompt() -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(model_path(TARGET))
    ids: list[int] = tokenizer("<|user|>Count to 9.<|end|><|assistant|>")["input_ids"]
    return ids


def values(limits: Range) -> list[Any]:
    ends = (limits.least, limits.most)
    steps = [end + step for end in ends for step in (-1, 0, 1)]
    between = [math.nextafter(limits.least, limits.most), math.nextafter(limits.most, 0)]
    return [*steps, *between, *HOSTILE, *(-value for value in HOSTILE), 0, 0.5]


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """One to three fields, each with a number of its own kind of extremes."""
    names = draw(st.lists(st.sampled_from(sorted(NUMBERS)), min_size=1, max_size=3, unique=True))
    return {name: draw(st.sampled_from(values(NUMBERS[name]))) for name in names}


def check(params: SamplingParams, fields: set[str]) -> None:
    """`fields`: of which one may be refused."""
    events = list(generate(verifier(), [prompt()], params, drafter=NgramDrafter()))
    first = events[0]
    if isinstance(first, Rejected):
        assert first.error.field in fields
        assert str(first.error).startswith(f"{first.error.field}: ")
        return
    stream = [token for event in events for token in event.token_ids]  # type: ignore[union-attr]
    vocab_size = verifier().vocab_size
    # In a form that the reference takes literally: what is that cold is greedy.
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    temperature = 0.0 if params.temperature < 1e-9 else params.temperature
    stops = (*params.stop_token_ids, *verifier().stop_token_ids)
    literal = replace(params, top_k=top_k, temperature=temperature, stop_token_ids=stops)
    assert params.seed is not None
    Identity(reference_target()).check(prompt(), stream, literal, params.seed)


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_each_number_alone(name: str) -> None:
    limits = NUMBERS[name]
    for value in values(limits):
        check(replace(PLAIN, **{name: value}), {name, "min_tokens"})


@settings(max_examples=300, deadline=None, derandomize=True)
@given(changed=changes())
def test_the_api_refuses_what_the_engine_would(changed: dict[str, Any]) -> None:
    fields = {name: value for name, value in changed.items() if name != "prompt_logprobs"}
    body = {"model": "target", "prompt": "x", **fields}
    refusal: ApiError | None = None
    try:
        request = CompletionRequest.model_validate(body)
    except (ValidationError, InvalidRequest) as error:
        refusal = ApiError.of(error)
    if refusal is not None:
        assert (refusal.status, refusal.param in fields) == (400, True)
        return
    params = sampling_params(request, max(1, request.max_tokens))
    params = replace(params, seed=request.given_seed or 0)
    check(params, {"max_tokens", "min_tokens"})


@pytest.mark.parametrize("bias", [*values(BIAS), 99.9])
def test_a_bias_is_refused_or_served(bias: float) -> None:
    check(replace(PLAIN, logit_bias={100: bias, 7: 2.0}), {"logit_bias"})


@pytest.mark.parametrize("token", [-1, 0, 2047, 2048, 2**31, 2**63, 2**64, 1.5, math.nan, math.inf])
def test_a_token_is_refused_or_served(token: Any) -> None:
    check(replace(PLAIN, logit_bias={token: -1.0}), {"logit_bias"})
    check(replace(PLAIN, stop_token_ids=(token,), min_tokens=2), {"stop_token_ids"})
    (event, *_) = generate(verifier(), [[*prompt(), token]], PLAIN)
    valid = isinstance(token, int) and 0 <= token < verifier().vocab_size
    assert isinstance(event, Rejected) != valid


@pytest.mark.parametrize("logit_bias", [{}, {7: -100.0}])
def test_stop_tokens_that_leave_none_to_choose_are_refused(logit_bias: dict[int, float]) -> None:
    class Small(NativeVerifier):
        @property
        def vocab_size(self) -> int:
            return 8

    small = Small(verifier()._model)
    params = SamplingParams(
        min_tokens=2, stop_token_ids=tuple(range(8)), logit_bias=logit_bias, ignore_eos=True
    )
    (event,) = generate(small, [[5]], params)
    assert isinstance(event, Rejected)
    assert event.error.field == "min_tokens"
    assert "stop_token_ids" in str(event.error)
