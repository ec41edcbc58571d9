"""Each field of a request is honoured or refused by name, and reaches the engine."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cluster.built_in_models import TARGET, model_path
from deployments.ingress.clients import Client, Shares
from deployments.ingress.errors import ApiError
from deployments.ingress.requests.completions import ChatRequest, CompletionRequest
from deployments.ingress.requests.stream_requests import StreamRequestBuilder, choice_seeds
from deployments.ingress.requests.unsupported import SHARED
from deployments.ingress.tokenizer import Tokens
from deployments.messages import StreamRequest
from engine.errors import InvalidRequest
from engine.request import TargetLimits
from engine.sampling.params import SamplingParams, choice_seed
from engine.scopes import scope_of
from tests.deployments.local import make_config

Kind = type[CompletionRequest] | type[ChatRequest]
TOKENS = Tokens(model_path(TARGET))
LIMITS = TargetLimits(vocab_size=2048, max_context=100, stop_token_ids=())
CONFIG = make_config(
    slo_classes={"fast": {"ttft_ms": 200, "tpot_ms": 20}},
    limits={"max_batch": 4, "max_waiting": 4, "max_choices": 3},
)
CLIENT = Client("tenant", "tenant", may_prioritize=True)
COMPLETION = {"model": "target", "prompt": [5, 6, 7]}
TOOL = {"type": "function", "function": {"name": "x"}}
CHAT = {"model": "target", "messages": [{"role": "user", "content": "Hello"}]}


def named(function: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": function}}


def allowed(function: str) -> dict[str, Any]:
    tools = {"mode": "auto", "tools": [named(function)]}
    return {"type": "allowed_tools", "allowed_tools": tools}


def choices(request: CompletionRequest | ChatRequest) -> list[StreamRequest]:
    builder = StreamRequestBuilder(CONFIG, TOKENS, "ingress")
    builder.check_size(request, CLIENT, LIMITS, Shares(CONFIG, lambda: 1).largest_request)
    return asyncio.run(builder.choices(request, "x", CLIENT.tenant, LIMITS))


def completion(**fields: Any) -> list[StreamRequest]:
    return choices(CompletionRequest.model_validate({**COMPLETION, **fields}))


def chat(**fields: Any) -> list[StreamRequest]:
    return choices(ChatRequest.model_validate({**CHAT, **fields}))


def refusal(kind: Kind, fields: dict[str, Any]) -> ApiError:
    with pytest.raises((ValidationError, InvalidRequest, ApiError)) as caught:
        choices(kind.model_validate(fields))
    return ApiError.of(caught.value)


SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 9,
    "top_p": 0.9,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.25,
    "logit_bias": {"7": -3.5},
    "max_tokens": 40,
    "min_tokens": 2,
    "stop_token_ids": [11],
    "ignore_eos": True,
}


@pytest.mark.parametrize("ask", [completion, chat])
def test_every_sampling_field_reaches_the_engine(ask: Any) -> None:
    (sent,) = ask(**SAMPLING, seed=2**64 - 1)
    wanted = {**SAMPLING, "logit_bias": {7: -3.5}, "stop_token_ids": (11,)}
    assert sent["params"] == SamplingParams(**wanted, seed=2**64 - 1)


@pytest.mark.parametrize(
    ("ask", "fields", "asked"),
    [
        (completion, {}, None),
        (completion, {"logprobs": 0}, 0),
        (completion, {"logprobs": 5}, 5),
        (chat, {"logprobs": False}, None),
        (chat, {"logprobs": True}, 0),
        (chat, {"logprobs": True, "top_logprobs": 4}, 4),
    ],
)
def test_logprobs_as_each_api_requests_them(
    ask: Any, fields: dict[str, Any], asked: int | None
) -> None:
    assert ask(**fields)[0]["params"].logprobs == asked


def test_null_counts_as_absent() -> None:
    nothing = dict.fromkeys(("temperature", "logprobs", "seed", "stop", "suffix", "user", "n"))
    asked = completion(**{**nothing, "seed": 1})
    assert asked == completion(seed=1)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one two", [TOKENS.encode_blocking("one two")]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        (["one", "two"], [TOKENS.encode_blocking("one"), TOKENS.encode_blocking("two")]),
    ],
)
def test_prompts_are_text_or_tokens_one_or_several(prompt: Any, prompts: list[list[int]]) -> None:
    sent = completion(prompt=prompt, n=2)
    assert [one["prompt_ids"] for one in sent] == [ids for ids in prompts for _ in range(2)]
    assert len({one["name"] for one in sent}) == len(sent)


def test_a_single_choice_has_the_seed_and_several_have_seeds_of_their_own() -> None:
    assert [one["params"].seed for one in completion(seed=5)] == [5]
    assert [one["params"].seed for one in completion(seed=5, n=3)] == [
        choice_seed(5, i) for i in range(3)
    ]


def test_a_missing_seed_is_drawn_for_each_prompt() -> None:
    assert choice_seeds(None, 1) != choice_seeds(None, 1)
    seeds = [one["params"].seed for one in completion(prompt=[[5], [5]])]
    assert len(set(seeds)) == 2, "equal prompts without a seed differ"
    seeds += [one["params"].seed for one in completion(seed=-1, n=3)]
    assert all(seed is not None and 0 <= seed < 2**53 for seed in seeds), (
        "JavaScript's numbers are exact up to there"
    )


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (None, {"enabled": True, "drafter": None, "max_depth": None}),
        ("off", {"enabled": False, "drafter": None, "max_depth": None}),
        ("near", {"enabled": True, "drafter": "near", "max_depth": None}),
        ({"max_depth": 2}, {"enabled": True, "drafter": None, "max_depth": 2}),
        ({"off": True}, {"enabled": False, "drafter": None, "max_depth": None}),
        ({"drafter": "near", "max_depth": 2}, {"enabled": True, "drafter": "near", "max_depth": 2}),
    ],
)
def test_speculation(asked: Any, sent: dict[str, Any]) -> None:
    assert completion(speculation=asked)[0]["speculation"] == sent


@pytest.mark.parametrize(
    ("asked", "ttft_s", "tpot_s"),
    [(None, None, None), ("fast", 0.2, 0.02), ({"tpot_ms": 50}, None, 0.05)],
)
def test_slo_by_value_or_class(asked: Any, ttft_s: float | None, tpot_s: float | None) -> None:
    sent = completion(slo=asked)[0]["slo"]
    assert (sent.ttft_s, sent.tpot_s) == (ttft_s, tpot_s)


def test_priority_tenant_and_scope_are_sent() -> None:
    """A lower value is earlier, as in vLLM; inside, the higher value is. A salt may be a secret."""
    (sent,) = completion(priority=-3, cache_salt="a secret")
    assert (sent["priority"], sent["tenant"], sent["ingress"]) == (3, "tenant", "ingress")
    assert sent["scope"] == scope_of("tenant" if CONFIG.isolates_tenants else "", "a secret")
    assert sent["scope"] != scope_of(sent["scope"].tenant, "other")
    assert "secret" not in repr(sent)


def test_an_answer_is_kept_for_later_requests_unless_its_client_says_no() -> None:
    remembered = [completion(store=store)[0]["remember"] for store in (None, True, False)]
    assert remembered == [True, True, False]


@pytest.mark.parametrize(("sharing", "scope"), [("tenant", "tenant"), ("all", "")])
def test_tenants_share_a_scope_only_where_the_config_says_so(sharing: str, scope: str) -> None:
    config = make_config(api_keys={"tenant": "key"}, sharing=sharing)
    builder = StreamRequestBuilder(config, TOKENS, "ingress")
    request = CompletionRequest.model_validate(COMPLETION)
    (sent,) = asyncio.run(builder.choices(request, "x", CLIENT.tenant, LIMITS))
    assert sent["scope"].tenant == scope


SHARED_REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": 5}),
    ("top_p", {"top_p": 0}),
    ("frequency_penalty", {"frequency_penalty": float("inf")}),
    ("logit_bias", {"logit_bias": {"5": 101}}),
    ("stop_token_ids", {"stop_token_ids": [9999]}),
    ("max_tokens", {"max_tokens": 0}),
    ("min_tokens", {"min_tokens": 10, "max_tokens": 5}),
    ("seed", {"seed": 2**64}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("spindle", {"spindle": {"trace": True}}),
    ("slo", {"slo": "slow"}),
    ("speculation", {"speculation": "unknown"}),
    ("logit_bias", {"logit_bias": {str(token): 1 for token in range(1025)}}),
    ("allowed_token_ids", {"allowed_token_ids": [5]}),
    ("bad_words", {"bad_words": ["x"]}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 2}),
    ("prompt_logprobs", {"prompt_logprobs": 1}),
    ("include_stop_str_in_output", {"include_stop_str_in_output": True}),
    ("use_beam_search", {"use_beam_search": True}),
]
COMPLETION_REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [[]]}),
    ("prompt", {"prompt": [5, 9999]}),
    ("prompt", {"prompt": "lone \ud800 surrogate"}),
    ("prompt", {"prompt": [[5]] * 9}),
    ("max_tokens", {"max_tokens": 0, "echo": False}),
]
CHAT_REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages", {"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}),
    ("prompt", {"prompt": "x"}),
    ("max_tokens", {"max_tokens": 5, "max_completion_tokens": 6}),
    ("messages", {"messages": [{"role": "user", "tool_call_id": "a", "content": "x"}]}),
    ("tools", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
    ("tools", {"tools": [TOOL, TOOL]}),
    ("tools", {"tools": [{**TOOL, "function": {"name": "no spaces"}}]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": named("y"), "tools": [TOOL]}),
    ("tool_choice", {"tool_choice": allowed("y"), "tools": [TOOL]}),
    ("tool_choice", {"tool_choice": {"type": "custom"}, "tools": [TOOL]}),
    ("reasoning_effort", {"reasoning_effort": "huge"}),
    ("response_format", {"response_format": {"type": "json_schema"}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
    (
        "structured_outputs",
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
    ),
    ("continue_final_message", {"continue_final_message": True, "add_generation_prompt": True}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"tokenize": False}}),
]


@pytest.mark.parametrize(
    ("kind", "field", "fields"),
    [
        *((CompletionRequest, *one) for one in SHARED_REFUSALS + COMPLETION_REFUSALS),
        *((ChatRequest, *one) for one in SHARED_REFUSALS + CHAT_REFUSALS),
    ],
)
def test_a_bad_field_is_refused_by_name(kind: Kind, field: str, fields: dict[str, Any]) -> None:
    base = COMPLETION if kind is CompletionRequest else CHAT
    error = refusal(kind, {**base, **fields})
    assert (error.status, error.param) == (400, field)
    assert error.message.startswith(field)


def test_openais_fields_are_accepted_at_their_defaults() -> None:
    """And none is named as without effect."""
    defaults = {"best_of": 1, "echo": False, "suffix": None, "user": "me", "stream_options": None}
    text = CompletionRequest.model_validate({**COMPLETION, **defaults})
    assert text.without_effect == ()
    assert len(choices(text)) == 1
    fields = dict(
        user="me",
        tools=[],
        tool_choice="none",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        modalities=["text"],
        store=False,
        metadata={"session": "x"},
        service_tier="auto",
        prompt_cache_key="x",
        safety_identifier="x",
        max_tokens=5,
        max_completion_tokens=5,
    )
    asked = ChatRequest.model_validate({**CHAT, **fields})
    assert asked.without_effect == ()
    assert len(choices(asked)) == 1


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (CompletionRequest, {**COMPLETION, "prompt": [5] * 100}, "prompt"),
        (CompletionRequest, {**COMPLETION, "max_tokens": 101}, "max_tokens"),
        (ChatRequest, {**CHAT, "max_completion_tokens": 101}, "max_completion_tokens"),
        (
            ChatRequest,
            {**CHAT, "messages": [{"role": "user", "content": "word " * 120}]},
            "messages",
        ),
    ],
)
def test_what_exceeds_the_context_is_refused_as_openai_does(
    kind: Kind, fields: dict[str, Any], param: str
) -> None:
    error = refusal(kind, fields)
    assert (error.status, error.param, error.code) == (400, param, "context_length_exceeded")
    assert "maximum context length is 100 tokens" in error.message


def test_max_tokens_that_the_context_has_no_room_for_are_left_out() -> None:
    assert completion(max_tokens=100)[0]["params"].max_tokens == 97
    (sent,) = chat(max_tokens=100)
    assert sent["params"].max_tokens == 100 - len(sent["prompt_ids"])
    fields = {**COMPLETION, "max_tokens": 100, "min_tokens": 98}
    assert refusal(CompletionRequest, fields).param == "min_tokens"


def test_messages_are_rendered_as_the_fields_say() -> None:
    messages = [
        {"role": "developer", "content": "Be brief.", "name": "me"},
        {"role": "assistant", "content": "Hel"},
    ]
    begin = "<|system|>Be brief.<|end|><|assistant|>Hel"
    for fields, text in (
        ({}, f"{begin}<|end|><|assistant|>"),
        ({"add_generation_prompt": False}, f"{begin}<|end|>"),
        ({"continue_final_message": True}, begin),
        ({"chat_template_kwargs": {"unused": 1}}, f"{begin}<|end|><|assistant|>"),
    ):
        (sent,) = chat(messages=messages, **fields)
        assert TOKENS.decode(sent["prompt_ids"]) == text


def test_the_documented_fields_are_those_that_exist() -> None:
    documented: dict[type, set[str]] = {CompletionRequest: set(), ChatRequest: set()}
    page = (Path(__file__).parents[4] / "docs" / "api.md").read_text()
    table = page.partition("## Fields")[2].partition("##")[0]
    for row in re.findall(r"^\| (`.*?)\n", table, re.MULTILINE):
        names, of_completions, of_chat = row.split("|")[:3]
        for kind, present in ((CompletionRequest, of_completions), (ChatRequest, of_chat)):
            if present.strip():
                documented[kind] |= set(re.findall(r"`(\w+)`", names))
    for kind in (CompletionRequest, ChatRequest):
        assert documented[kind] == set(kind.model_fields)
    refused = page.partition("### Fields that are refused")[2].partition("\n#")[0]
    names = {
        name
        for row in re.findall(r"^\| (`.*?)\|", refused, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert names == set(SHARED)
