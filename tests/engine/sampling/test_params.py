"""Parameters that no engine could honour are refused by name."""

import math
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.sampling.params import SamplingParams, validate_params

VOCAB = 50


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", math.nan),
        ("logit_bias", {VOCAB: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {3: 101.0}),
        ("logit_bias", {3: math.nan}),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("stop_token_ids", (VOCAB,)),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 21),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_a_bad_value_is_refused_naming_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validate_params(SamplingParams(**{field: value}), VOCAB)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


def test_values_on_the_edge_of_what_is_allowed_pass() -> None:
    validate_params(SamplingParams(), VOCAB)
    validate_params(
        SamplingParams(
            temperature=0.0,
            top_k=10**6,
            top_p=1e-6,
            min_p=1.0,
            repetition_penalty=0.01,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            logit_bias={0: -100.0, VOCAB - 1: 100.0},
            max_tokens=1,
            min_tokens=1,
            stop_token_ids=(0, VOCAB - 1),
            logprobs=20,
            seed=2**64 - 1,
        ),
        VOCAB,
    )
